# SPDX-License-Identifier: Apache-2.0

"""Selection of the configuration: usually that of nova-compute."""

from __future__ import annotations

import os
from collections.abc import Sequence

from oslo_config import cfg

from os_acc import conf, exception
from os_acc.store import state_files

PROJECT = "os-acc"
#: Hint for a wrong or missing configuration.
NAME_IT = "pass nova-compute's: --config-file /etc/nova/nova.conf"

# nova-compute registers these options itself. Nova is not imported here, and
# without them no device would appear as claimed by Nova (nova/conf/pci.py,
# nova/conf/devices.py).
_NOVA_PCI = cfg.MultiStrOpt(
    "device_spec",
    default=[],
    deprecated_opts=[
        cfg.DeprecatedOpt("passthrough_whitelist", group="pci"),
        cfg.DeprecatedOpt("pci_passthrough_whitelist", group="DEFAULT"),
    ],
)
_NOVA_MDEV = cfg.ListOpt(
    "enabled_mdev_types", default=[], deprecated_name="enabled_vgpu_types"
)


def load(
    config: cfg.ConfigOpts, files: Sequence[str], directories: Sequence[str], root: str
) -> None:
    """Parse configuration files and directories.

    The default is the configuration that oslo.config finds for the project
    os-acc, or else that of nova-compute.

    :raises InvalidConfiguration: one is missing, unreadable or malformed.
    """
    if not files and not directories:
        files, directories = _defaults(root)
    arguments = [
        *(f"--config-file={each}" for each in files),
        *(f"--config-dir={each}" for each in directories),
    ]
    try:
        config(
            arguments,
            project=PROJECT,
            default_config_files=[],
            default_config_dirs=[],
        )
        _register_novas_options(config)
        _use_recorded_name(config)
    except cfg.ConfigFilesPermissionDeniedError as error:
        raise exception.InvalidConfiguration(
            str(error), hint="run it as root, or as the user nova-compute runs as"
        ) from error
    except cfg.ConfigFilesNotFoundError as error:
        raise _missing("file", *error.config_files) from error
    except cfg.ConfigDirNotFoundError as error:
        raise _missing("directory", error.config_dir) from error
    except OSError as error:
        raise exception.InvalidConfiguration(
            f"cannot read the configuration: {error}", hint=NAME_IT
        ) from error
    except cfg.Error as error:
        raise exception.InvalidConfiguration(str(error)) from error


def _missing(kind: str, *paths: str) -> exception.InvalidConfiguration:
    return exception.InvalidConfiguration(
        f"configuration {kind} {', '.join(paths)} does not exist", hint=NAME_IT
    )


def read_files(config: cfg.ConfigOpts) -> tuple[str, ...]:
    """Return the files and directories that were parsed."""
    return (*(config.config_file or ()), *(config.config_dir or ()))


def _defaults(root: str) -> tuple[list[str], list[str]]:
    # oslo.config searches by project and by program name. Both are the same here,
    # and a file that is read twice has its device_spec twice.
    files = list(dict.fromkeys(cfg.find_config_files(PROJECT, PROJECT)))
    directories = list(dict.fromkeys(cfg.find_config_dirs(PROJECT, PROJECT)))
    if files or directories:
        return files, directories
    nova = os.path.join(root, "etc/nova")
    return (
        _existing(nova, "nova.conf", "nova-compute.conf"),
        _existing(nova, "nova.conf.d", "nova-compute.conf.d"),
    )


def _existing(directory: str, *names: str) -> list[str]:
    paths = (os.path.join(directory, name) for name in names)
    return [path for path in paths if os.path.exists(path)]


def _use_recorded_name(config: cfg.ConfigOpts) -> None:
    """Let the node have the name that the service passed to ``os_acc.initialize()``."""
    try:
        state_path = conf.state_path(config)
    except exception.InvalidConfiguration:
        # Each command, and 'os-acc check', reports an invalid option.
        return
    if name := state_files.recorded_node_name(state_path):
        config.set_default("node_name", name, group=conf.GROUP.name)


def _register_novas_options(config: cfg.ConfigOpts) -> None:
    config.register_opts([_NOVA_PCI], group="pci")
    config.register_opts([_NOVA_MDEV], group="devices")
    for name in config.devices.enabled_mdev_types:
        addresses = cfg.ListOpt(
            "device_addresses",
            default=[],
            deprecated_group=f"vgpu_{name}",
        )
        config.register_opts([addresses], group=f"mdev_{name}")
