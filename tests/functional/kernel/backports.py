# SPDX-License-Identifier: Apache-2.0

"""Linux 6.12 and QEMU 10 of Debian's backports, beside the installed packages.

They are downloaded and unpacked into ``build/backports``, with a view of apt of
their own: apt itself would replace the installed QEMU, and the kernel that
``installed`` boots. No file of the system changes, and no root is needed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
ROOT = CHECKOUT / "build" / "backports"
#: The program that starts QEMU, below :data:`ROOT`, alone in its folder.
EMULATOR = Path("emulator", "qemu-system-x86_64")

RELEASE = "bookworm"
SERIES = "6.12"
#: All of QEMU's modules are needed: it would load those of another version, and abort.
_QEMU = (
    "qemu-block-extra",
    "qemu-system-common",
    "qemu-system-data",
    "qemu-system-gui",
    "qemu-system-modules-opengl",
    "qemu-system-modules-spice",
    "qemu-system-x86",
    "seabios",
)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: Downloads that may fail before the lane does; apt also tries each file again.
_TRIES = 2
#: Seconds of one call of apt, on a slow network.
_DEADLINE = 600.0
_STARTER = """\
#!/bin/sh
export QEMU_MODULE_DIR={root}/usr/lib/x86_64-linux-gnu/qemu
exec {root}/usr/bin/qemu-system-x86_64 -L {root}/usr/share/qemu \\
    -L {root}/usr/share/seabios -L /usr/lib/ipxe/qemu "$@"
"""


class DownloadFailed(Exception):
    """The packages could not be downloaded or unpacked."""


def unpacked() -> Path:
    """Return the folder of the unpacked packages; fill it, if it is not complete.

    :raises DownloadFailed: it is still incomplete after the last try.
    """
    complete = ROOT / "complete"
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if complete.exists() and complete.read_text() == recipe:
        return ROOT
    for last in (*[False] * (_TRIES - 1), True):
        shutil.rmtree(ROOT, ignore_errors=True)
        try:
            _fill()
        except DownloadFailed as error:
            if last:
                raise
            print(f"kernel lane: {error}; trying once more", flush=True)
        else:
            break
    complete.write_text(recipe)
    return ROOT


def _fill() -> None:
    print(f"kernel lane: downloading Linux {SERIES} and its QEMU", flush=True)
    apt = ROOT / "apt"
    for folder in ("parts", "lists/partial", "cache/archives/partial", "packages"):
        (apt / folder).mkdir(parents=True)
    (apt / "parts" / "backports.sources").write_text(
        f"Types: deb\nURIs: {_mirror()}\nSuites: {RELEASE}-backports\n"
        f"Components: main\nSigned-By: {_KEYRING}\n"
    )
    _run("apt-get", *_view(apt), "--error-on=any", "update")
    names = (*_kernel_packages(apt), *_QEMU)
    _run("apt-get", *_view(apt), "download", *names, folder=apt / "packages")
    for package in sorted((apt / "packages").glob("*.deb")):
        _run("dpkg-deb", "--extract", str(package), str(ROOT))
    shutil.rmtree(apt)
    _move_headers()
    _start_emulator()


def _mirror() -> str:
    """Return the mirror from which this machine's own packages come."""
    for line in _run("apt-get", "indextargets", "--format=$(RELEASE) $(REPO_URI)"):
        release, _, uri = line.partition(" ")
        if release == RELEASE:
            return uri
    raise DownloadFailed(f"no source of {RELEASE} in /etc/apt")


def _view(apt: Path) -> Iterator[str]:
    """Yield the options of apt that let it see the backports alone."""
    settings = {
        "Acquire::Retries": "3",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "parts",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::Status": "/dev/null",
    }
    for name, value in settings.items():
        yield f"-o{name}={value}"


def _kernel_packages(apt: Path) -> tuple[str, ...]:
    depends = "\n".join(_run("apt-cache", *_view(apt), "show", "linux-image-amd64"))
    found = re.search(rf"linux-image-({re.escape(SERIES)}\.\S+)-amd64", depends)
    if found is None:
        raise DownloadFailed(f"{RELEASE}-backports has no Linux {SERIES}")
    version = found[1]
    return (
        f"linux-image-{version}-amd64",
        f"linux-headers-{version}-amd64",
        f"linux-headers-{version}-common",
        f"linux-kbuild-{version}",
        f"linux-source-{SERIES}",
    )


def _move_headers() -> None:
    """Let the headers, and the tables of modules, refer to their place below ROOT."""
    (modules,) = (ROOT / "lib" / "modules").iterdir()
    sources = ROOT / "usr" / "src"
    makefile = sources / f"linux-headers-{modules.name}" / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src", str(sources)))
    (modules / "build").unlink(missing_ok=True)
    (modules / "build").symlink_to(makefile.parent)
    _run("/sbin/depmod", "-b", str(ROOT), modules.name)


def _start_emulator() -> None:
    starter = ROOT / EMULATOR
    starter.parent.mkdir()
    starter.write_text(_STARTER.format(root=shlex.quote(str(ROOT))))
    starter.chmod(0o755)
    _run(str(starter), "--version")


def _run(*command: str, folder: Path | None = None) -> list[str]:
    """Run a command; return its output as lines.

    :raises DownloadFailed: it failed, or did not end.
    """
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            timeout=_DEADLINE,
        ).stdout.splitlines()
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip()[-500:]
        raise DownloadFailed(f"{command[0]} failed: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"{command[0]} did not end") from error
