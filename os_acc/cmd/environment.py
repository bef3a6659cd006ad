# SPDX-License-Identifier: Apache-2.0

"""The environment of a command: configuration, user, and the simulated host."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from os_acc import conf, exception
from os_acc.store import owner_of, state_files

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
_MAKE_HOST = "make a host in a new directory: os-acc demo --keep DIR"


# -- configuration ----------------------------------------------------------


def load_configuration(
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
            arguments, project=PROJECT, default_config_files=[], default_config_dirs=[]
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
    rootwrap = cfg.BoolOpt("disable_rootwrap", default=False)
    config.register_opts([rootwrap], group="workarounds")
    config.register_opts([_NOVA_MDEV], group="devices")
    for name in config.devices.enabled_mdev_types:
        addresses = cfg.ListOpt(
            "device_addresses", default=[], deprecated_group=f"vgpu_{name}"
        )
        config.register_opts([addresses], group=f"mdev_{name}")


# -- user -------------------------------------------------------------------


def check_owner(state_path: str) -> tuple[int, int]:
    """Return the user and group id of the state directory's owner.

    :raises StateUnavailable: the directory does not exist.
    """
    if not os.path.exists(state_path):
        raise exception.StateUnavailable(
            f"state directory {state_path} does not exist",
            hint="create it for the user of nova-compute: install -d -o nova "
            f"-g nova -m 0750 {state_path}",
        )
    return owner_of(state_path)


def become_owner(state_path: str) -> None:
    """Switch from root to the owner permanently, with the owner's groups.

    :raises StateUnavailable: the directory does not exist, or another user's link leads
        to it.
    """
    if os.geteuid() != 0:
        return
    for each in (state_path, *map(str, Path(state_path).parents)):
        if os.path.islink(each) and (owner := os.lstat(each).st_uid):
            # It may lead to a directory of root, who would then stay root.
            raise exception.StateUnavailable(
                f"{each} is a link of user {name_of(owner)}",
                hint=f"set [os_acc] state_path to its target, or chown -h root {each}",
            )
    uid, gid = check_owner(state_path)
    if uid == 0:
        return
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        groups = [gid]
    # The user last: only root may change groups. All three ids, so that the
    # switch is irreversible.
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def name_of(uid: int) -> str:
    """Return a user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# -- simulated host ---------------------------------------------------------


def simulated_host(directory: str) -> tuple[str, str]:
    """Return the root and the configuration file of a host of ``os-acc demo --keep``.

    Root becomes the owner of the directory: its configuration names the command
    that starts the helpers.

    :raises InvalidInput: the directory has no simulated host.
    """
    root = os.path.join(directory, "host")
    config_file = os.path.join(directory, "os-acc.conf")
    if not os.path.isdir(os.path.join(root, "sys")) or not os.path.isfile(config_file):
        raise exception.InvalidInput(
            f"{directory} has no simulated host", hint=_MAKE_HOST
        )
    become_owner(directory)
    # Commands for the real host do not import the simulation.
    from os_acc.testing.kernel import FakeKernel

    try:
        # Completes a change of the tree that a killed process has begun.
        FakeKernel(root)
    except OSError as error:
        raise exception.InvalidInput(
            f"cannot use the simulated host in {directory}: {error.strerror}",
            hint="run the command as the owner of the directory",
        ) from error
    return root, config_file


def simulated_helpers(
    state_path: str, root: str, config_file: str
) -> contextlib.AbstractContextManager[None]:
    """Keep all helpers on a simulated host, also those that its configuration omits.

    A helper that is started as on a real host would reach the real kernel, as root.

    :raises InvalidConfiguration: the host is a copy, or was moved: it has the state of
        another one.
    """
    directory = os.path.realpath(os.path.dirname(config_file))
    if os.path.dirname(os.path.realpath(state_path)) != directory:
        raise exception.InvalidConfiguration(
            f"{config_file} is of another simulated host: its state_path is "
            f"{state_path}",
            hint=f"a simulated host cannot be moved or copied; {_MAKE_HOST}",
        )
    from os_acc.testing import helper

    return helper.helpers_started_by(helper.command(root, config_file))
