# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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
