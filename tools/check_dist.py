# SPDX-License-Identifier: Apache-2.0

"""Build the source distribution and the wheel, and check what they contain.

``python tools/check_dist.py DIRECTORY`` builds the last commit, not the working
tree, and leaves both files in the directory. It prints each fault, and ends with 1
if there is any.
"""

from __future__ import annotations

import configparser
import email.parser
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
#: Directories of the repository that have no place among installed packages.
_NOT_INSTALLED = (".ci/", "benchmarks/", "doc/", "examples/", "tests/", "tools/")


def main(arguments: list[str]) -> int:
    """Build, check, and print the faults."""
    target = Path(*arguments).resolve()
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="dist.") as temporary:
        # 1. A clean tree: a clone of the last commit, without files that git ignores.
        clean = Path(temporary, "clone")
        subprocess.run(["git", "clone", "-q", CHECKOUT, clean], check=True)
        # 2. The source distribution, and a wheel from the same tree.
        build(clean, target, "--sdist", "--wheel")
        (sdist,) = target.glob("*.tar.gz")
        (wheel,) = target.glob("*.whl")
        # 3. A second wheel, from the source distribution, on a machine without git.
        unpacked = unpack(sdist, Path(temporary, "unpacked"))
        without_git = {"PATH": "/nonexistent"}
        build(unpacked, Path(temporary, "again"), "--wheel", **without_git)
        (again,) = Path(temporary, "again").glob("*.whl")
        found = [
            *faults_of_sdist(tracked(clean), unpacked),
            *faults_of_wheel(clean, wheel),
            *differences(wheel, again),
        ]
    for fault in found:
        print(fault)
    print(f"{sdist.name}, {wheel.name}: {len(found)} faults")
    return bool(found)


def build(tree: Path, target: Path, *kinds: str, **environment: str) -> None:
    """Build distributions of a tree with the tools of this environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds]
    subprocess.run(
        [*command, "--outdir", target, tree],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def unpack(sdist: Path, target: Path) -> Path:
    """Unpack a source distribution; return its only directory."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (top,) = target.iterdir()
    return top


def tracked(tree: Path) -> set[str]:
    """Return the files that git tracks in a tree."""
    command = ["git", "-C", str(tree), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(listed.split("\0")) - {""}


def faults_of_sdist(expected: set[str], unpacked: Path) -> Iterator[str]:
    """Yield the tracked files that a source distribution lacks."""
    found = {
        str(path.relative_to(unpacked))
        for path in unpacked.rglob("*")
        if path.is_file()
    }
    # setuptools leaves out git's own files.
    for name in sorted(expected - found - {".gitignore"}):
        yield f"the source distribution lacks {name}"
    if "PKG-INFO" not in found:
        yield "the source distribution lacks PKG-INFO, and with it its version"


def faults_of_wheel(tree: Path, wheel: Path) -> Iterator[str]:
    """Yield missing and superfluous files, and wrong metadata."""
    config = configparser.ConfigParser(strict=False)
    config.optionxform = str  # type: ignore[assignment,method-assign]
    config.read(tree / "setup.cfg")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (each for each in names if each.endswith(".dist-info/METADATA"))
        info = metadata.removesuffix("/METADATA")
        data = f"{info.removesuffix('.dist-info')}.data/data"
        text = archive.read(metadata).decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
    expected = {name for name in tracked(tree) if name.startswith("os_acc/")}
    expected |= {f"{data}/{name}" for name in data_files(config)}
    expected.add(f"{info}/licenses/LICENSE")
    for name in sorted(expected - names):
        yield f"the wheel lacks {name}"
    if "os_acc/py.typed" not in names:
        yield "the wheel has no types: os_acc/py.typed"
    for name in sorted(names - expected):
        if not name.startswith(f"{info}/"):
            yield f"the wheel has {name}, which does not belong there"
    for name in sorted(names):
        if name.startswith(_NOT_INSTALLED):
            yield f"the wheel would install {name} beside the package"
    yield from faults_of_metadata(email.parser.Parser().parsestr(text), tree, config)
    yield from faults_of_entry_points(points, config)


def data_files(config: configparser.ConfigParser) -> Iterator[str]:
    """Yield the installed paths of setup.cfg's data files."""
    directory = ""
    for line in config["files"]["data_files"].strip().splitlines():
        if line.endswith("="):
            directory = line.removesuffix("=").strip()
        elif "=" in line:
            directory = line.partition("=")[0].strip()
        else:
            yield f"{directory}/{Path(line.strip()).name}"


def faults_of_metadata(
    metadata: Message, tree: Path, config: configparser.ConfigParser
) -> Iterator[str]:
    """Yield the fields of METADATA that differ from setup.cfg and requirements.txt."""
    for field, key in (
        ("Requires-Python", "python_requires"),
        ("License", "license"),
        ("Summary", "summary"),
    ):
        if metadata[field] != config["metadata"][key]:
            yield f"{field} is {metadata[field]!r}, not {config['metadata'][key]!r}"
    target = config["metadata"]["version"]
    if metadata["Version"] != target and not metadata["Version"].startswith(
        f"{target}."
    ):
        yield f"the version is {metadata['Version']}, not {target} or one before it"
    required = {
        canonical(line)
        for line in (tree / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    listed = {canonical(each) for each in metadata.get_all("Requires-Dist", [])}
    if required != listed:
        yield f"requirements differ: {sorted(required ^ listed)}"
    if not metadata.get_payload():
        yield "the description is empty"


def canonical(requirement: str) -> str:
    """Return a requirement without spaces and parentheses, in lower case."""
    return "".join(each for each in requirement.lower() if each not in " ()")


def faults_of_entry_points(
    text: str, config: configparser.ConfigParser
) -> Iterator[str]:
    """Yield the groups whose entry points differ from setup.cfg."""
    points = configparser.ConfigParser(delimiters=["="])
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(text)
    for group, lines in config["entry_points"].items():
        pairs = (line.partition("=") for line in lines.strip().splitlines())
        expected = {name.strip(): value.strip() for name, _, value in pairs}
        if not points.has_section(group) or dict(points[group]) != expected:
            yield f"the entry points of {group} differ from setup.cfg"


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield the files that two wheels have not in common, or with other contents."""
    if one.name != other.name:
        yield f"the source distribution builds {other.name}, the tree {one.name}"
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        of_tree, of_sdist = (
            {each.filename: each.CRC for each in archive.infolist()}
            for archive in (first, second)
        )
    for name in sorted(of_tree.keys() | of_sdist.keys()):
        if of_tree.get(name) != of_sdist.get(name):
            yield f"{name} differs in the wheel that the source distribution builds"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
