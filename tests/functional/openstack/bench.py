# SPDX-License-Identifier: Apache-2.0

"""A host whose cards a simulated kernel has, and whose images Glance itself."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from os_acc.testing import HostSpec
from tests.functional.openstack.cloud import Cloud
from tests.unit.fpga import FpgaBench


class CloudBench(FpgaBench):
    """Images come from Glance."""

    source = "glance"

    def __init__(self, place: Path, spec: HostSpec, cloud: Cloud) -> None:
        self._cloud = cloud
        super().__init__(place, spec)

    def read(self) -> cfg.ConfigOpts:
        return self._cloud.conf()
