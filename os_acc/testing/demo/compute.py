# SPDX-License-Identifier: Apache-2.0

"""A compute service on the simulated host, as far as os_acc is concerned.

Run as a program it is a second one, which plugs one accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oslo_config import cfg

import os_acc
from os_acc import service
from os_acc.attach.manager import Manager
from os_acc.objects.api import AcceleratorEntry, InstanceDict
from os_acc.objects.device import Provider


def configure(config: str) -> None:
    """Read one configuration file, and nothing of the real host's."""
    cfg.CONF(
        ["--config-file", config],
        project="os-acc",
        default_config_files=[],
        default_config_dirs=[],
        use_env=False,
    )


def start(config: str, root: str) -> Manager:
    """What :func:`os_acc.initialize` does, for a host below another root.

    :param config: path of the configuration file.
    """
    configure(config)
    return service.initialize(reset=True, root=root)


def plug_one(instance: InstanceDict, provider: Provider) -> list[AcceleratorEntry]:
    """Plug one unit of a provider, in the short form of ``selected_rp``."""
    extra_specs = {f"resources:{provider.device.resource_class}": "1"}
    return os_acc.plug(instance, {"uuid": provider.uuid}, extra_specs)


def main(argv: Sequence[str]) -> None:
    """CONFIG ROOT INSTANCE_UUID INSTANCE_NAME PROVIDER_UUID."""
    config, root, uuid, name, wanted = argv
    start(config, root)
    (provider,) = (each for each in service.get().providers() if each.uuid == wanted)
    plug_one({"uuid": uuid, "name": name}, provider)


if __name__ == "__main__":
    main(sys.argv[1:])
