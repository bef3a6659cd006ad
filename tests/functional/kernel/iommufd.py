# SPDX-License-Identifier: Apache-2.0

"""Build iommufd, and VFIO with a node for each device, for the kernel of the backports.

Debian switches both off. They are built out of tree from Debian's own package of the
kernel's source, and hide Debian's modules in a tree of modules of their own, below
``build``. iommufd needs a part of ``lib/interval_tree.c`` that the kernel lacks; mtty
has to be built with the same VFIO.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .kernel_modules import BUILD, SAMPLES, identity, make, run, unpack
from .kernels import Kernel

#: The folder that contains ``lib/modules/<release>``.
ROOT = BUILD / "iommufd"

_SYMBOLS = (
    *("CONFIG_IOMMUFD_MODULE", "CONFIG_IOMMUFD_DRIVER"),
    *("CONFIG_VFIO_DEVICE_CDEV", "CONFIG_INTERVAL_TREE_SPAN_ITER"),
)
_SOURCES = (
    *("drivers/iommu/iommufd", "drivers/iommu/iommu-priv.h", "drivers/vfio"),
    *("lib/interval_tree.c", "samples/vfio-mdev"),
)
#: The generic functions of the interval tree, which the kernel exports itself.
_FIRST, _LAST = "INTERVAL_TREE_DEFINE(", "EXPORT_SYMBOL_GPL(interval_tree_iter_next);"
_MAKEFILES = {
    "drivers": (
        "obj-m := iommu/iommufd/ vfio/ ../samples/vfio-mdev/\n"
        f"subdir-ccflags-y := {' '.join(f'-D{each}=1' for each in _SYMBOLS)}\n"
    ),
    "drivers/iommu/iommufd": (
        "obj-m := iommufd.o iova_bitmap.o\n"
        "iommufd-y := device.o fault.o hw_pagetable.o io_pagetable.o ioas.o main.o "
        "pages.o vfio_compat.o span_iter.o\n"
    ),
    "drivers/vfio": (
        "obj-m := vfio.o vfio_iommu_type1.o pci/\n"
        "vfio-y := vfio_main.o device_cdev.o group.o iommufd.o container.o virqfd.o\n"
    ),
    "drivers/vfio/pci": (
        "obj-m := vfio-pci-core.o vfio-pci.o\n"
        "vfio-pci-core-y := vfio_pci_core.o vfio_pci_intrs.o vfio_pci_rdwr.o "
        "vfio_pci_config.o\n"
        "vfio-pci-y := vfio_pci.o vfio_pci_igd.o\n"
    ),
    "samples/vfio-mdev": f"obj-m := {' '.join(f'{each}.o' for each in SAMPLES)}\n",
}


def build(kernel: Kernel) -> None:
    """Build the modules, and the tree in which modprobe finds them, if needed.

    :raises Unavailable: they do not compile.
    """
    if not kernel.has_iommufd:
        return
    stamp, made_of = ROOT / "stamp", identity(kernel, Path(__file__))
    if stamp.exists() and stamp.read_text() == made_of:
        return
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    print("kernel lane: building iommufd and VFIO", flush=True)
    tree = unpack(kernel, ROOT, _SOURCES)
    _adapt(tree)
    make(kernel, ROOT, tree / "drivers")
    modules = ROOT / "lib" / "modules" / kernel.release
    debians = kernel.root / "lib" / "modules" / kernel.release
    shutil.copytree(debians, modules, symlinks=True, copy_function=_copy)
    # depmod prefers this folder.
    (modules / "updates").mkdir()
    for each in tree.rglob("*.ko"):
        shutil.copy(each, modules / "updates")
    run(ROOT, "/sbin/depmod", "-b", str(ROOT), kernel.release)
    stamp.write_text(made_of)


def _adapt(tree: Path) -> None:
    for folder, text in _MAKEFILES.items():
        (tree / folder / "Makefile").write_text(text)
    iommufd = tree / "drivers" / "iommu" / "iommufd"
    source = (tree / "lib" / "interval_tree.c").read_text()
    before, _, rest = source.partition(_FIRST)
    (iommufd / "span_iter.c").write_text(before + rest.partition(_LAST)[2])
    with open(iommufd / "iova_bitmap.c", "a", encoding="ascii") as bitmap:
        bitmap.write('\n#include <linux/module.h>\nMODULE_LICENSE("GPL");\n')


def _copy(source: str, target: str) -> None:
    """Copy a table, which depmod overwrites; link a module, which takes no space."""
    (os.link if ".ko" in source else shutil.copy2)(source, target)
