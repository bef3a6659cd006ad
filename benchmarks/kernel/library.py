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

"""The library, as nova-compute has it, on the card with four VFs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from oslo_config import cfg

import os_acc
from os_acc import conf, privsep
from tests.functional.kernel import sysfs


class Library:
    """An initialized library that offers the VFs of one PF.

    :param state: the directory for what it records.
    """

    def __init__(self, pf: str, state: Path) -> None:
        self._pf = pf
        cfg.CONF([], default_config_files=[], default_config_dirs=[])
        conf.register(cfg.CONF)
        named = json.dumps({"address": pf, "num_vfs": 4})
        for name, value in {
            "state_path": str(state),
            "device_spec": [named],
            "node_name": "node",
            # Software emulation beside other work takes minutes for it.
            "initialize_timeout": 300.0,
            "helper_start_timeout": 240.0,
        }.items():
            cfg.CONF.set_override(name, value, group=conf.GROUP.name)

    def start(self, *, helper: bool) -> None:
        """Initialize it.

        :param helper: False: root's part runs in this process.
        """
        for context in (privsep.base, privsep.inspect):
            context.set_client_mode(helper)
        os_acc.initialize(reset=True)
        (provider,) = os_acc.providers()
        self._provider = provider
        self.vfs = sysfs.virtual_functions(self._pf)
        assert len(self.vfs) == 4, self.vfs

    def plug(self, amount: int) -> dict[str, str]:
        """Plug VFs for a new instance; what it is called."""
        guest = {"uuid": str(uuid.uuid4()), "name": "guest"}
        specs = {f"resources1:{self._provider.device.resource_class}": str(amount)}
        entries = os_acc.plug(guest, {"uuid": self._provider.uuid}, specs)
        assert len(entries) == amount, entries
        return guest

    def unplug(self, guest: dict[str, str], amount: int) -> None:
        """Give back all of an instance."""
        released = os_acc.unplug(guest)
        assert released == amount, f"{released} of {amount} released"
