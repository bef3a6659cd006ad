# SPDX-License-Identifier: Apache-2.0

"""Build the kernel's FPGA drivers, which Debian's kernels do not contain.

They are built out of tree, against the headers of the machine's kernel, from
Debian's own package of the kernel's source. The results stay in ``build/dfl``;
no part of the kernel is in this repository, and none is distributed.

``python tests/functional/kernel/dfl_build.py /boot/vmlinuz-<release>``
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
BUILD = CHECKOUT / "build" / "dfl"

#: The configuration symbol of each module, in the order of insertion.
MODULES = {
    "fpga-mgr": "FPGA",
    "fpga-bridge": "FPGA_BRIDGE",
    "fpga-region": "FPGA_REGION",
    "dfl": "FPGA_DFL",
    "dfl-fme-mgr": "FPGA_DFL_FME_MGR",
    "dfl-fme-br": "FPGA_DFL_FME_BRIDGE",
    "dfl-fme-region": "FPGA_DFL_FME_REGION",
    "dfl-fme": "FPGA_DFL_FME",
    "dfl-afu": "FPGA_DFL_AFU",
    "dfl-pci": "FPGA_DFL_PCI",
}
#: A port acknowledges its reset within 1 ms, according to dfl-afu-main.c. A process
#: simulates the card of the tests, and a busy machine may delay it longer: this
#: timeout is the only difference from the kernel.
_PATIENCE = "#define RST_POLL_TIMEOUT 1000 "
_MORE_PATIENCE = "#define RST_POLL_TIMEOUT 5000000 "


def build(kernel: Path) -> None:
    """Build the modules for ``kernel`` (its file in /boot) in :data:`BUILD`.

    :raises SystemExit: a package is missing, or they do not compile.
    """
    release = kernel.name.removeprefix("vmlinuz-")
    headers = Path("/lib/modules", release, "build")
    version = re.match(r"\d+\.\d+", release)
    source = Path(f"/usr/src/linux-source-{version and version[0]}.tar.xz")
    for needed, package in (
        (headers / "Module.symvers", f"linux-headers-{release}"),
        (source, source.name.removesuffix(".tar.xz")),
    ):
        if not needed.exists():
            sys.exit(f"kernel lane: no {needed}; install {package}")
    stamp = BUILD / "stamp"
    made_of = _identity(kernel, headers / "Module.symvers", source, Path(__file__))
    if stamp.exists() and stamp.read_text() == made_of:
        return
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    print(f"kernel lane: building drivers/fpga for Linux {release}", flush=True)
    with open(BUILD / "build.log", "wb") as log:
        for command in _commands(headers, source):
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                sys.exit(f"kernel lane: {command[0]} failed; see {log.name}")
            if command[0] == "tar":
                _be_patient(_tree(source) / "dfl-afu-main.c")
    for name in MODULES:
        shutil.copy(_tree(source) / f"{name}.ko", BUILD)
    stamp.write_text(made_of)


def _tree(source: Path) -> Path:
    return BUILD / source.name.removesuffix(".tar.xz") / "drivers" / "fpga"


def _commands(headers: Path, source: Path) -> list[list[str]]:
    tree = _tree(source)
    switches = [f"CONFIG_{switch}=m" for switch in MODULES.values()]
    unpack = ["tar", "--extract", f"--directory={BUILD}", f"--file={source}"]
    return [
        # Most of the time is spent here, and xz alone would use one core.
        [*unpack, "--use-compress-program=xz -T0", str(tree.relative_to(BUILD))],
        ["make", "-j2", "-C", str(headers), f"M={tree}", *switches, "modules"],
    ]


def _be_patient(path: Path) -> None:
    text = path.read_text()
    if text.count(_PATIENCE) != 1:
        sys.exit(f"kernel lane: {path} has not one line {_PATIENCE}")
    path.write_text(text.replace(_PATIENCE, _MORE_PATIENCE))


def _identity(kernel: Path, symbols: Path, source: Path, recipe: Path) -> str:
    contents = hashlib.sha256()
    for path in (kernel, symbols, recipe):
        contents.update(path.read_bytes())
    # The file is too large to be read each time.
    package = source.stat()
    return f"{contents.hexdigest()} {package.st_size} {package.st_mtime_ns}\n"


if __name__ == "__main__":
    build(Path(sys.argv[1]))
