# SPDX-License-Identifier: Apache-2.0

"""Checks of the privileged helper."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Iterator

from os_acc import exception, privsep
from os_acc.cmd.checks import CheckContext, Finding, failed, ok, sections, warning
from os_acc.cmd.checks.configuration import unknown_names
from os_acc.helper import client
from os_acc.inventory import eligibility
from os_acc.objects.mdev import function_of
from os_acc.privsep import privileged_conf
from os_acc.privsep.nvme import context as nvme_context
from os_acc.privsep.privileged_conf import LimitMode


def starts(context: privsep.Context, checked: CheckContext) -> Iterator[Finding]:
    """Check that the helper of a context starts."""
    settings = checked.settings
    command = shlex.join(context.helper_command("SOCKET"))
    deadline = time.monotonic() + settings.initialize_timeout
    found = client.Helper(settings.write_timeout, settings.helper_start_timeout)
    try:
        found.start(deadline, [context])
    except exception.HelperUnavailable as error:
        yield failed(
            f"{error.message}; the command is: {command}",
            "allow that command ('os-acc privileges sudoers' or 'rootwrap' prints the "
            f"rules), or set [{context.cfg_section}] helper_command",
        )
    else:
        yield ok(f"starts with: {command}")


def of_plugins(checked: CheckContext) -> Iterator[Finding]:
    """Check that the contexts of vendors' plugins start."""
    for name, context in checked.plugins.contexts:
        for found in starts(context, checked):
            yield dataclasses.replace(found, what=f"plugin {name}: {found.what}")


def nvme(checked: CheckContext) -> Iterator[Finding]:
    """Check that the context for erasing NVMe devices starts, if some are offered."""
    if checked.erased_nvme:
        yield from starts(nvme_context, checked)


def limits(checked: CheckContext) -> Iterator[Finding]:
    """Check that root's configuration limits the helper."""
    settings = checked.settings
    deadline = time.monotonic() + settings.initialize_timeout
    try:
        mode, path, why = client.Helper(settings.write_timeout).limits(deadline)
    except (exception.HelperUnavailable, exception.HelperLost) as error:
        yield failed(
            f"cannot query the helper: {error.message}", "see the check 'helper base'"
        )
        return
    match mode:
        case LimitMode.ENFORCED:
            yield from _enforced(checked, path)
        case LimitMode.BROKEN:
            yield failed(
                f"cannot use {path}: {why}; the helper binds and programs no device",
                "correct the file; its device_spec has the syntax of "
                "[os_acc] device_spec",
            )
        case LimitMode.IGNORED:
            yield warning(
                f"the helper ignores {path}: {why}; its callers decide which "
                "devices are bound and programmed",
                "make root the owner of the file and its directories, "
                "without write permission for other users",
            )
        case LimitMode.ABSENT:
            yield warning(
                f"{path} does not exist: the callers of the helper decide "
                "which devices are bound and programmed",
                "create the file, owned by root, with [os_acc] device_spec",
            )


def denied(checked: CheckContext) -> Iterator[Finding]:
    """Report the offered functions that root's configuration lacks."""
    path = os.path.join(checked.root, *privileged_conf.PATH)
    if not os.access(path, os.R_OK):
        return
    root, host = privileged_conf.read(path), checked.look.inventory.host
    if root.mode is not LimitMode.ENFORCED or not root.devices.entries:
        return
    permitted = {address for address, _tags in eligibility.matches(root.devices, host)}
    found = [
        str(handle.address)
        for _provider, handle in checked.offered
        # The rest of its slot is bound with a named function.
        if permitted.isdisjoint(filter(None, map(function_of, handle.members)))
    ]
    if found:
        yield warning(
            f"{path} does not allow {exception.some(found, 4)}: no guest gets them",
            f"name them in [os_acc] device_spec in {path}, or remove them from "
            "nova-compute's",
        )


def _enforced(checked: CheckContext, path: str) -> Iterator[Finding]:
    """Check that root's configuration allows a device, and has no misspelt option."""
    if not os.access(path, os.R_OK):
        yield ok(
            f"{path} limits what the helper binds and programs; this user cannot "
            "read it"
        )
        return
    found = privileged_conf.read(path)
    if found.mode is LimitMode.ENFORCED and not found.devices.entries:
        yield warning(
            f"device_spec is empty in {path}: the helper binds and programs no device",
            f"set [os_acc] device_spec in {path}",
        )
    else:
        yield ok(f"{path} limits what the helper binds and programs")
    yield from unknown_names(sections([path]), checked.config)
