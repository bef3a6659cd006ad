# SPDX-License-Identifier: Apache-2.0

"""A host for each plugin of os_acc, for the checks of conformance.

A new plugin is one line of :data:`HOSTS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from os_acc.testing import (
    FunctionSpec,
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    TestHost,
    hosts,
)
from os_acc.testing.mdevs import mtty

_GPU: Final = "0000:17:00.0"
_QAT: Final = "0000:d8:00.0"
_C62X: Final = "0000:3d:00.0"
_DRIVE: Final = "0000:41:00.0"


def _host(
    *functions: FunctionSpec,
    specs: tuple[str, ...] = (),
    mdev_parents: tuple[MdevParentSpec, ...] = (),
    disable_denylist: bool = False,
) -> Callable[[Path], TestHost]:
    """Return a function that makes a host with these functions.

    :param specs: its ``device_spec``; empty: all functions.
    :param disable_denylist: the option of vfio-pci.
    """

    def make(directory: Path) -> TestHost:
        spec = HostSpec(
            functions, mdev_parents=mdev_parents, disable_denylist=disable_denylist
        )
        options = {"device_spec": list(specs)} if specs else {}
        return TestHost(directory, spec, **options)

    return make


def _vgpus() -> tuple[FunctionSpec, FunctionSpec]:
    types = (MdevTypeSpec("nvidia-558"), MdevTypeSpec("nvidia-559", cost=2))
    display, audio = hosts.gpu("0000:17")
    return dataclasses.replace(display, mdevs=MdevParentSpec(_GPU, 4, types)), audio


#: For each case of conformance: its plugin, and its host.
HOSTS: Final[Mapping[str, tuple[str, Callable[[Path], TestHost]]]] = {
    "pci": ("pci", _host(*hosts.gpu("0000:17"))),
    "pci with VFs": (
        "pci",
        # Class 12: a network card would be the plugin nic's.
        _host(
            dataclasses.replace(
                hosts.nic("0000:3b", name="ens1", vfs=2, boot_vfs=2),
                class_code=0x120000,
            )
        ),
    ),
    "dfl": ("dfl", _host(hosts.dfl("0000:3b"))),
    "xrt": ("xrt", _host(*hosts.alveo("0000:5e"))),
    "nic": ("nic", _host(hosts.nic("0000:3b", name="ens1f0", boot_vfs=4))),
    "qat": (
        "qat",
        _host(
            hosts.qat_gen4("0000:d8", 1),
            specs=(f'{{"address": "{_QAT}", "num_vfs": 16}}',),
        ),
    ),
    "qat as a whole": (
        "qat",
        _host(hosts.qat_gen4("0000:d8", 1), specs=(f'{{"address": "{_QAT}"}}',)),
    ),
    "qat C62x": (
        "qat",
        _host(
            hosts.qat("0000:3d", 0),
            specs=(f'{{"address": "{_C62X}", "num_vfs": 16}}',),
            disable_denylist=True,
        ),
    ),
    "nvme": ("nvme", _host(hosts.nvme_disk("0000:d9", 1))),
    "nvme with VFs": (
        "nvme",
        _host(
            hosts.nvme_sriov("0000:41", 0, private=((2,), (3,))),
            specs=(f'{{"address": "{_DRIVE}", "num_vfs": 2}}',),
        ),
    ),
    "nvidia": (
        "nvidia",
        _host(
            hosts.vgpu_card("0000:41"),
            # The card has capacity for two vGPUs of this type.
            specs=tuple(
                f'{{"address": "0000:41:00.{number}", "vgpu_type": "1154"}}'
                for number in (4, 5)
            ),
        ),
    ),
    "nvidia with more VFs than capacity": (
        "nvidia",
        _host(
            hosts.vgpu_card("0000:41"),
            specs=tuple(
                f'{{"address": "0000:41:00.{number}", "vgpu_type": "1154"}}'
                for number in (4, 5, 6, 7)
            ),
        ),
    ),
    "mdev": (
        "mdev",
        _host(
            *_vgpus(),
            specs=(f'{{"address": "{_GPU}", "mdev_types": "nvidia-558, nvidia-559"}}',),
        ),
    ),
    "mdev of a virtual parent": (
        "mdev",
        _host(
            specs=('{"mdev_parent": "mtty", "mdev_types": "mtty-2"}',),
            mdev_parents=(mtty(),),
        ),
    ),
}
