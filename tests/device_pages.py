# SPDX-License-Identifier: Apache-2.0

"""The pages of the devices in the manual, and the host that each describes."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from pathlib import Path

from os_acc.testing import HostSpec, hosts
from os_acc.testing.mdevs import mtty
from os_acc.testing.specs import FunctionSpec


def _hgx_gpu(bus: str) -> FunctionSpec:
    """Return an H100 SXM, which has no audio function."""
    return dataclasses.replace(hosts.gpu(bus)[0], product=0x2330)


PAGES = Path(__file__).parents[1] / "doc/source/devices"
#: The host of each page.
HOSTS = {
    "gpu": HostSpec(hosts.gpu("0000:17")),
    "hgx": HostSpec(
        (
            *(_hgx_gpu(f"0000:{bus}") for bus in ("17", "27")),
            *(hosts.nvswitch(f"0000:{bus}") for bus in ("05", "06")),
        )
    ),
    "vgpu": HostSpec((hosts.vgpu_card("0000:41"),)),
    "mdev": HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),)),
    "qat": HostSpec((hosts.qat_gen4("0000:6b"),)),
    "nvme": HostSpec((hosts.nvme_disk("0000:d9", 1),)),
    "nic": HostSpec((hosts.nic("0000:3b", name="ens1"),)),
    "fpga": HostSpec((hosts.dfl("0000:b3", 1),)),
}


def blocks(page: str, kind: str) -> list[str]:
    """Return the code blocks of a page."""
    text = (PAGES / f"{page}.rst").read_text()
    found = re.findall(rf"code-block:: {kind}\n\n((?:   .*\n)+)", text)
    return [re.sub("(?m)^   ", "", each) for each in found]


def lines(page: str) -> list[str]:
    """Return each command of a page, without its prompt."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return re.findall(r"(?m)^[#$] (.+)$", text)


def commands(page: str) -> list[list[str]]:
    """Return the words of each command of a page."""
    return [shlex.split(each) for each in lines(page)]


def flavor(page: str) -> dict[str, str]:
    """Return the extra specs of the flavor of a page."""
    (words,) = (each for each in commands(page) if each[0] == "openstack")
    options = itertools.pairwise(words)
    pairs = [value for option, value in options if option == "--property"]
    return dict(each.split("=", 1) for each in pairs)
