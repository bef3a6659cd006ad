# SPDX-License-Identifier: Apache-2.0

"""The calls of a compute service to os_acc, on the simulated host.

As a program it is another compute service, which plugs one accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import os_acc
from os_acc import service
from os_acc.attach.manager import Manager
from os_acc.objects.api import AcceleratorEntry, InstanceDict
from os_acc.objects.device import Provider
from os_acc.testing import privileged


def start(config: str, root: str) -> Manager:
    """Start the service as :func:`os_acc.initialize` does, below another root.

    :param config: path of the configuration file.
    """
    privileged.read_config(config)
    return service.initialize(reset=True, root=root)


def plug_one(instance: InstanceDict, provider: Provider) -> list[AcceleratorEntry]:
    """Plug one unit of a provider, in the short form of ``selected_rp``."""
    extra_specs = {f"resources:{provider.device.resource_class}": "1"}
    return os_acc.plug(instance, {"uuid": provider.uuid}, extra_specs)


def main(argv: Sequence[str]) -> None:
    """Plug for ``CONFIG ROOT INSTANCE_UUID INSTANCE_NAME PROVIDER_UUID``."""
    config, root, uuid, name, wanted = argv
    start(config, root)
    (provider,) = (each for each in service.get().providers() if each.uuid == wanted)
    plug_one({"uuid": uuid, "name": name}, provider)


if __name__ == "__main__":
    main(sys.argv[1:])
