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
from collections.abc import Iterable
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
    stamp, made_of = target / "stamp", identity(kernel, Path(__file__))
    if stamp.exists() and stamp.read_text() == made_of:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    print(f"kernel lane: building modules for Linux {kernel.release}", flush=True)
    source = unpack(kernel, target, ("drivers/fpga", "samples/vfio-mdev"))
    tree, sample = source / "drivers" / "fpga", source / "samples" / "vfio-mdev"
    _be_patient(tree / "dfl-afu-main.c")
    objects = " ".join(f"{name}.o" for name in SAMPLES)
    (sample / "Makefile").write_text(f"obj-m := {objects}\n")
    switches = [f"CONFIG_{switch}=m" for switch in MODULES.values()]
    make(kernel, target, tree, *switches)
    make(kernel, target, sample)
    for name in MODULES:
        shutil.copy(tree / f"{name}.ko", target)
    for name in SAMPLES:
        shutil.copy(sample / f"{name}.ko", target)
    stamp.write_text(made_of)


def unpack(kernel: Kernel, target: Path, paths: Iterable[str]) -> Path:
    """Unpack parts of the kernel's source below a folder; return the source's root.

    :raises Unavailable: it cannot be unpacked.
    """
    name = kernel.source.name.removesuffix(".tar.xz")
    # Most of the time is spent here, and xz alone would use one core.
    command = ["tar", "--extract", "--use-compress-program=xz -T0"]
    command += [f"--directory={target}", f"--file={kernel.source}"]
    run(target, *command, *(f"{name}/{each}" for each in paths))
    return target / name


def make(kernel: Kernel, target: Path, tree: Path, *switches: str) -> None:
    """Compile the modules of a tree.

    :raises Unavailable: they do not compile.
    """
    # Type information needs the kernel's uncompressed image, which no package has.
    plain = ["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
    headers = ["-C", str(kernel.headers), f"M={tree}"]
    run(target, "make", "-j2", *headers, *switches, *plain)


def run(target: Path, *command: str) -> None:
    """Run a command, whose output goes to the log of a folder.

    :raises Unavailable: it failed.
    """
    path = target / "build.log"
    with open(path, "ab") as log:
        if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
            raise Unavailable(f"{command[0]} failed; see {path}")


def identity(kernel: Kernel, recipe: Path) -> str:
    """Return what the modules are made of: a kernel, its source, and a recipe."""
    contents = hashlib.sha256()
    for path in (kernel.image, kernel.headers / "Module.symvers", recipe):
        contents.update(path.read_bytes())
    # The file is too large to be read each time.
    package = kernel.source.stat()
    return f"{contents.hexdigest()} {package.st_size} {package.st_mtime_ns}\n"


def _be_patient(path: Path) -> None:
    text = path.read_text()
    if text.count(_PATIENCE) != 1:
        raise Unavailable(f"{path} has not one line {_PATIENCE}")
    path.write_text(text.replace(_PATIENCE, _MORE_PATIENCE))
