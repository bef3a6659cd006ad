# SPDX-License-Identifier: Apache-2.0

"""The example plugins work when they are installed as by a vendor."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from os_acc.plugins import loader

TOP = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((TOP / "examples").glob("*/pyproject.toml"))
#: PEP 517: pip calls this function of a project's backend to build the wheel.
BUILD = (
    "import sys\n"
    "sys.path.insert(0, sys.argv[2])\n"
    "from setuptools import build_meta\n"
    "build_meta.build_wheel(sys.argv[1])\n"
)


def project_of(example: Path) -> dict[str, Any]:
    """Return the table ``project`` of an example's ``pyproject.toml``."""
    found: dict[str, Any] = tomllib.loads((example / "pyproject.toml").read_text())
    return dict(found["project"])


def is_met(text: str) -> bool:
    """Return whether the installed version of a package meets a requirement."""
    requirement = Requirement(text)
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def install(source: Path, site: Path) -> None:
    """Install an example without its requirements, as pip does without a network.

    :param source: a copy of the example, in which the build writes.
    """
    site.mkdir()
    settings = tomllib.loads((source / "pyproject.toml").read_text())
    if not all(map(is_met, settings["build-system"]["requires"])):
        install_metadata(source, site)
        return
    wheels, backend = source / "dist", site.with_name("backend")
    copy_backend(backend)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BUILD, wheels, backend],
        capture_output=True,
        text=True,
        cwd=source,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def copy_backend(directory: Path) -> None:
    """Make setuptools importable alone, as in the environment in which pip builds.

    Other packages add commands to those of setuptools (pbr does).
    """
    found = metadata.distribution("setuptools")
    parts = {each.parts[0] for each in found.files or () if each.parts[0] != ".."}
    directory.mkdir()
    for part in parts:
        (directory / part).symlink_to(Path(str(found.locate_file(part))).resolve())


def install_metadata(source: Path, site: Path) -> None:
    """Copy the packages and write their metadata: the build backend is missing."""
    project = project_of(source)
    name, version = project["name"].replace("-", "_"), project["version"]
    shutil.copytree(source / name, site / name)
    directory = site / f"{name}-{version}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
    )
    (directory / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {at}\n" for key, at in points.items())
            for group, points in project["entry-points"].items()
        )
    )


class Installed:
    """An installed example.

    :ivar source: a copy of its source tree.
    :ivar site: the directory with its packages.
    """

    def __init__(self, example: Path, directory: Path) -> None:
        self.source, self.site = directory / "source", directory / "site"
        self._cache = directory / "cache"
        ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__")
        shutil.copytree(example, self.source, ignore=ignored)
        install(self.source, self.site)
        (self.distribution,) = metadata.distributions(path=[str(self.site)])

    def run(self, *arguments: str) -> str:
        """Run Python with the example installed; return its output."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (self.site, TOP))),
            # stevedore caches entry points.
            "XDG_CACHE_HOME": str(self._cache),
        }
        done = subprocess.run(
            # -P: the tests import the installed package, not the source tree.
            [sys.executable, "-P", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.source,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(
    scope="module", params=EXAMPLES, ids=lambda project: project.parent.name
)
def installed(request, tmp_path_factory):
    return Installed(request.param.parent, tmp_path_factory.mktemp("example"))


def test_there_is_an_example():
    assert EXAMPLES


def test_the_tests_of_an_example_pass(installed, tmp_path):
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}")
    output = installed.run("-m", "pytest", *options)
    assert re.search(r"^\d+ passed\b", output, re.MULTILINE), output


def test_an_example_is_found_by_its_entry_point(installed):
    program = (
        "from os_acc.plugins import loader\n"
        "for group, options in loader.list_opts():\n"
        "    print(group, *(option.name for option in options))\n"
    )
    output = installed.run("-c", program)
    for name in project_of(installed.source)["entry-points"][loader.NAMESPACE]:
        assert f"os_acc_{name} " in output


def test_the_entry_points_of_an_example_load_what_is_installed(installed):
    program = (
        "import inspect\n"
        "from importlib import metadata\n"
        "distribution = metadata.distribution('{}')\n"
        "for point in distribution.entry_points:\n"
        "    print(inspect.getfile(point.load()))\n"
    )
    output = installed.run("-c", program.format(installed.distribution.name))
    files = [Path(line) for line in output.splitlines()]
    assert len(files) == len(installed.distribution.entry_points) > 0
    assert all(each.is_relative_to(installed.site) for each in files), files


def test_the_requirements_of_an_example_are_met(installed):
    """A development version of os_acc meets the requirement of os_acc, too."""
    found = installed.distribution.requires
    assert found is not None
    needed = [each for each in found if Requirement(each).marker is None]
    assert "os-acc" in {Requirement(each).name for each in needed}
    assert [each for each in needed if not is_met(each)] == []


@pytest.mark.parametrize("project", EXAMPLES, ids=lambda each: each.parent.name)
def test_an_example_can_be_installed_without_its_backend(project, tmp_path):
    install_metadata(project.parent, tmp_path)
    (found,) = metadata.distributions(path=[str(tmp_path)])
    settings = project_of(project.parent)
    assert found.requires == settings["dependencies"]
    names = {each.name for each in found.entry_points.select(group=loader.NAMESPACE)}
    assert names == set(settings["entry-points"][loader.NAMESPACE])


def test_the_examples_are_not_in_the_wheel():
    packages = {"os_acc"}
    text = (TOP / "setup.cfg").read_text()
    section = re.search(r"^packages =\n((?: +\w+\n)+)", text, re.MULTILINE)
    assert section
    assert set(section[1].split()) == packages
