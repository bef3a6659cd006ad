# SPDX-License-Identifier: Apache-2.0

"""The library, initialized as by nova-compute, on the card with four VFs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from oslo_config import cfg

import os_acc
from os_acc import conf, privsep, service
from os_acc.objects.api import InstanceDict
from tests.functional.kernel import sysfs


class Library:
    """An initialized library that offers the VFs of one PF.

    :param state: the directory for its state.
    """

    def __init__(self, pf: str, state: Path) -> None:
        self._pf = pf
        cfg.CONF([], default_config_files=[], default_config_dirs=[])
        conf.register(cfg.CONF)
        named = json.dumps({"address": pf, "num_vfs": 4, "allow_no_erase": True})
        for name, value in {
            "state_path": str(state),
            "device_spec": [named],
            "node_name": "node",
            # Initialization takes minutes in software emulation beside other work.
            "initialize_timeout": 300.0,
            "helper_start_timeout": 240.0,
        }.items():
            cfg.CONF.set_override(name, value, group=conf.GROUP.name)

    def start(self, *, helper: bool) -> None:
        """Initialize it.

        :param helper: False: the privileged steps run in this process.
        """
        for context in (privsep.base, privsep.inspect):
            context.set_client_mode(helper)
        os_acc.initialize(reset=True)
        (provider,) = service.get().providers()
        self._provider = provider
        self.vfs = sysfs.virtual_functions(self._pf)
        assert len(self.vfs) == 4, self.vfs

    def plug(self, amount: int) -> InstanceDict:
        """Plug VFs for a new instance; return the instance."""
        guest: InstanceDict = {"uuid": str(uuid.uuid4()), "name": "guest"}
        specs = {f"resources1:{self._provider.device.resource_class}": str(amount)}
        entries = os_acc.plug(guest, {"uuid": self._provider.uuid}, specs)
        assert len(entries) == amount, entries
        return guest

    def unplug(self, guest: InstanceDict, amount: int) -> None:
        """Unplug all VFs of an instance."""
        released = os_acc.unplug(guest)
        assert released == amount, f"{released} of {amount} released"
