# SPDX-License-Identifier: Apache-2.0

"""A host on which each metric of ``os-acc metrics`` has a sample."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

from os_acc.plugins.dfl import DflPlugin
from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.cmd.console import Console

CARD, OTHER, DRIVE = "0000:05:00.0", "0000:06:00.0", "0000:d9:00.0"
READINGS = (
    ("aer_dev_correctable", "BadTLP 7\nTOTAL_ERR_COR 7\n"),
    ("aer_dev_nonfatal", "TLP 2\nTOTAL_ERR_NONFATAL 2\n"),
    ("aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 0\n"),
    ("current_link_speed", "8.0 GT/s PCIe\n"),
    ("current_link_width", "8\n"),
    ("max_link_speed", "16.0 GT/s PCIe\n"),
    ("max_link_width", "16\n"),
    ("power_state", "D0\n"),
    ("hwmon/hwmon3/name", "acme\n"),
    ("hwmon/hwmon3/temp1_input", "96500\n"),
    ("hwmon/hwmon3/temp1_crit", "95000\n"),
)


def exposition(directory: Path) -> str:
    """Return the output of ``os-acc metrics``.

    A card is too hot, a guest has the other card, a drive is being erased, and a plugin
    fails.
    """
    card = dataclasses.replace(hosts.fpga("0000:05"), attributes=READINGS)
    spec = HostSpec((card, hosts.fpga("0000:06"), hosts.nvme_disk("0000:d9", 1)))
    with TestHost(directory, spec) as host:
        console = Console(host, directory)
        host.plug(1, OTHER)
        host.manager.health_steps.read()
        host.plug(2, DRIVE)
        host.unplug(2)
        with mock.patch.object(DflPlugin, "discover", side_effect=OSError):
            ran = console.run("metrics")
        assert ran.status == 0, ran.err
        return ran.out
