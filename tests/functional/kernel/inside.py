# SPDX-License-Identifier: Apache-2.0

"""Prepare the machine of :mod:`.lane` as root, then run pytest.

``inside.py <results folder> <tag of the host's files> <root of the kernel>
<folder of QEMU> [pytest arguments]``. Standard library alone.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = ("vfio-pci", "vfio_iommu_type1", "nvme", "virtio_console")

#: The mount point of the host's files, and the directories that the machine may
#: write (into memory), as with virtme-ng.
_HOST = Path("/run/host-files")
_WRITABLE = ("etc", "home", "opt", "srv", "tmp", "usr", "var")
#: File systems of the machine's own kernel.
_OWN = ("dev", "proc", "run", "sys")

#: The users of Nova (may use sudo) and of QEMU (may not): name, uid.
COMPUTE = ("compute", 2001)
VM = ("vm", 2002)


def prepare(results: Path, tag: str, root: Path = Path("/")) -> None:
    """Prepare a booted machine for any job.

    :param root: the folder whose ``lib/modules`` has the modules of the kernel.
    """
    keep_files(results, tag)
    link_modules(root)
    # modprobe reports the modules that it could not load.
    subprocess.run(["modprobe", "--all", *MODULES], check=True)


def keep_files(results: Path, tag: str) -> None:
    """Mount the host's files over themselves, with the kernel's cache.

    As virtme-ng mounts them, each path lookup and each start of a program sends a
    request to the host (Documentation/filesystems/9p.rst, ``cache``): a third of
    the time that it takes to start Python in software emulation.

    :param results: the machine's output, which the host has to see at once.
    :param tag: of the device that exports the host's files once more.
    """
    _HOST.mkdir()
    options = "ro,version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose"
    _mount("-t", "9p", "-o", options, tag, _HOST)
    shared, above = Path("/run/results"), Path("/run/above")
    shared.mkdir()
    _mount("--bind", results, shared)
    for files in sorted(_HOST.iterdir()):
        here = Path("/", files.name)
        if files.name in _WRITABLE:
            upper, work = above / files.name, above / f"{files.name}-work"
            upper.mkdir(parents=True)
            # The upper layer's mode decides about write access.
            upper.chmod(stat.S_IMODE(files.stat().st_mode))
            work.mkdir()
            layers = f"xino=off,lowerdir={files},upperdir={upper},workdir={work}"
            _mount("-t", "overlay", "-o", layers, "overlay", here)
        elif files.name not in _OWN and files.is_dir() and not files.is_symlink():
            _mount("--bind", files, here)
    _mount("--bind", shared, results)


def link_modules(root: Path) -> None:
    """Let modprobe find the modules of a kernel that is not installed."""
    modules = Path("/lib/modules", os.uname().release)
    if not modules.exists():
        modules.symlink_to(root / modules.relative_to("/"))


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def add_account(name: str, uid: int) -> None:
    """Add an ordinary user with a home; ``/etc`` is an overlay here."""
    home = Path("/home") / name
    for table, line in (
        ("passwd", f"{name}:x:{uid}:{uid}::{home}:/bin/sh"),
        ("group", f"{name}:x:{uid}:"),
        ("shadow", f"{name}:*:19000:0:99999:7:::"),
    ):
        with open(f"/etc/{table}", "a", encoding="ascii") as accounts:
            accounts.write(line + "\n")
    home.mkdir(mode=0o755)
    os.chown(home, uid, uid)


def allow_sudo(name: str) -> None:
    """Let ``name`` become root without a password."""
    rule = Path("/etc/sudoers.d") / name
    rule.write_text(f"{name} ALL=(ALL) NOPASSWD: ALL\n", encoding="ascii")
    rule.chmod(0o440)


def run_pytest(results: Path, emulator: Path, arguments: list[str]) -> int:
    """Run the tests of this folder; return pytest's exit status.

    :param emulator: the folder of the QEMU of the inner guests.
    """
    python = Path(sys.executable).parent
    binaries = f"{python}:{emulator}:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {
        "PATH": binaries,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/var/tmp/hypothesis",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v"]
    command += [f"--junitxml={results}/junit.xml", "--durations=10"]
    command += [f"--figures={results}/figures.json", *arguments]
    if not any(Path(argument.split("::")[0]).exists() for argument in arguments):
        command.append(str(HERE))
    with open(results / "pytest.log", "wb") as log:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        ).returncode


def report(results: Path, job: Callable[[], int]) -> int:
    """Run the job; write its status to a file of :mod:`.lane`.

    Meanwhile another file grows, which shows that the machine itself still runs.
    """
    threading.Thread(target=_beat, args=(results / "beats",), daemon=True).start()
    status = job()
    unfinished = results / "status.new"
    unfinished.write_text(f"{status}\n", encoding="ascii")
    unfinished.rename(results / "status")
    return status


def _beat(path: Path) -> None:
    with open(path, "wb", buffering=0) as beats:
        while True:
            beats.write(b".")
            time.sleep(5)


def main(
    results: Path, tag: str, root: Path, emulator: Path, arguments: list[str]
) -> int:
    """Prepare, then run the tests."""
    prepare(results, tag, root)
    add_account(*COMPUTE)
    add_account(*VM)
    allow_sudo(COMPUTE[0])
    return report(results, lambda: run_pytest(results, emulator, arguments))


if __name__ == "__main__":
    _results, _tag, _root, _emulator, *_arguments = sys.argv[1:]
    sys.exit(main(Path(_results), _tag, Path(_root), Path(_emulator), _arguments))
