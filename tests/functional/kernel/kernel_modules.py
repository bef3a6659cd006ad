# SPDX-License-Identifier: Apache-2.0

"""Build the kernel's FPGA drivers and two sample drivers, which Debian does not ship.

They are built out of tree, against the headers of the machine's kernel, from
Debian's own package of the kernel's source. The results stay in ``build/modules``;
no part of the kernel is in this repository, and none is distributed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from .kernels import Kernel, Unavailable

CHECKOUT = Path(__file__).resolve().parents[3]
BUILD = CHECKOUT / "build" / "modules"

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
#: The kernel's sample parents of mediated devices.
MTTY, MDPY = "mtty", "mdpy"
SAMPLES = (MTTY, MDPY)
#: A port acknowledges its reset within 1 ms, according to dfl-afu-main.c. A process
#: simulates the card of the tests, and a busy machine may delay it longer: this
#: timeout is the only difference from the kernel.
_PATIENCE = "#define RST_POLL_TIMEOUT 1000 "
_MORE_PATIENCE = "#define RST_POLL_TIMEOUT 5000000 "


def module(name: str, release: str) -> Path:
    """Return the file of a module for the kernel of this release, which runs."""
    hidden = Path("/lib/modules", release, "updates", f"{name}.ko")
    return hidden if hidden.exists() else BUILD / release / f"{name}.ko"


def build(kernel: Kernel) -> None:
    """Build the modules for a kernel.

    :raises Unavailable: a package is missing, or they do not compile.
    """
    symbols = kernel.headers / "Module.symvers"
    for needed, package in (
        (symbols, f"linux-headers-{kernel.release}"),
        (kernel.source, kernel.source.name.removesuffix(".tar.xz")),
    ):
        if not needed.exists():
            raise Unavailable(f"no {needed}; install {package}")
    target = BUILD / kernel.release
    stamp = target / "stamp"
    made_of = _identity(kernel.image, symbols, kernel.source, Path(__file__))
    if stamp.exists() and stamp.read_text() == made_of:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    print(f"kernel lane: building modules for Linux {kernel.release}", flush=True)
    source = target / kernel.source.name.removesuffix(".tar.xz")
    tree, sample = source / "drivers" / "fpga", source / "samples" / "vfio-mdev"
    with open(target / "build.log", "wb") as log:
        for command in _commands(kernel, tree, sample):
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                raise Unavailable(f"{command[0]} failed; see {log.name}")
            if command[0] == "tar":
                _be_patient(tree / "dfl-afu-main.c")
                objects = " ".join(f"{name}.o" for name in SAMPLES)
                (sample / "Makefile").write_text(f"obj-m := {objects}\n")
    for name in MODULES:
        shutil.copy(tree / f"{name}.ko", target)
    for name in SAMPLES:
        shutil.copy(sample / f"{name}.ko", target)
    stamp.write_text(made_of)


def _commands(kernel: Kernel, tree: Path, sample: Path) -> list[list[str]]:
    target = BUILD / kernel.release
    switches = [f"CONFIG_{switch}=m" for switch in MODULES.values()]
    unpack = ["tar", "--extract", f"--directory={target}", f"--file={kernel.source}"]
    make = ["make", "-j2", "-C", str(kernel.headers)]
    # Type information needs the kernel's uncompressed image, which no package has.
    plain = ["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
    return [
        # Most of the time is spent here, and xz alone would use one core.
        [
            *(*unpack, "--use-compress-program=xz -T0"),
            *(str(each.relative_to(target)) for each in (tree, sample)),
        ],
        [*make, f"M={tree}", *switches, *plain],
        [*make, f"M={sample}", *plain],
    ]


def _be_patient(path: Path) -> None:
    text = path.read_text()
    if text.count(_PATIENCE) != 1:
        raise Unavailable(f"{path} has not one line {_PATIENCE}")
    path.write_text(text.replace(_PATIENCE, _MORE_PATIENCE))


def _identity(kernel: Path, symbols: Path, source: Path, recipe: Path) -> str:
    contents = hashlib.sha256()
    for path in (kernel, symbols, recipe):
        contents.update(path.read_bytes())
    # The file is too large to be read each time.
    package = source.stat()
    return f"{contents.hexdigest()} {package.st_size} {package.st_mtime_ns}\n"
