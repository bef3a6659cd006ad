# SPDX-License-Identifier: Apache-2.0

"""The methods of Nova's libvirt driver that the driver of os_acc overrides or calls.

None of them is a stable interface: a release may rename one, and an override would
then never be called. So each is checked when nova-compute starts. The list is the same
for Nova 31 to 34.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Final

from nova.virt.libvirt import guest, host

from os_acc import exception

#: Methods of ``nova.virt.driver.ComputeDriver``, the interface of virt drivers.
PUBLIC: Final = (
    *("check_can_live_migrate_destination", "check_can_live_migrate_source"),
    *("check_source_migrate_data_at_dest", "cleanup", "cleanup_host"),
    *("confirm_migration", "destroy", "finish_migration", "finish_revert_migration"),
    *("get_available_resource", "init_host", "migrate_disk_and_power_off", "rebuild"),
    *("post_live_migration_at_source", "pre_live_migration"),
    *("resume", "snapshot", "spawn", "suspend", "unrescue", "update_provider_tree"),
)
#: Methods of the libvirt driver alone; doc/source/contributor/nova-changes.rst has the
#: public one that would replace each.
PRIVATE: Final = (
    *("_get_all_assigned_mediated_devices", "_get_guest_xml", "_hard_reboot"),
    *("_get_pci_passthrough_devices", "_guest_add_accel_pci_devices"),
)
#: What it uses of Nova's other classes.
OF_GUEST: Final = (
    *("attach_device", "detach_device", "get_config", "is_active", "poweroff"),
)
OF_HOST: Final = ("get_guest", "get_hostname", "has_min_version", "list_guests")


def check(ours: type, novas: type) -> None:
    """Check that Nova's classes have each method, with the parameters that ours name.

    :param novas: Nova's libvirt driver.
    :raises InvalidConfiguration: they lack some; names all.
    """
    faults = [
        *_missing(novas, (*PUBLIC, *PRIVATE)),
        *_missing(guest.Guest, OF_GUEST),
        *_missing(host.Host, OF_HOST),
        *_changed(ours, novas),
    ]
    if faults:
        raise exception.InvalidConfiguration(
            f"the driver of os_acc does not fit this Nova: {'; '.join(faults)}",
            hint="install a release of os_acc that supports this release of Nova",
        )


def _missing(novas: type, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if not hasattr(novas, name):
            yield f"{novas.__module__}.{novas.__name__} has no method {name}"


def _changed(ours: type, novas: type) -> Iterator[str]:
    for name in (*PUBLIC, *PRIVATE):
        method, novas_own = getattr(ours, name, None), getattr(novas, name, None)
        if method is None or novas_own in (None, method):
            continue
        parameters = inspect.signature(novas_own).parameters
        kinds = {each.kind for each in parameters.values()}
        if kinds >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            # A decorator has hidden them.
            continue
        accepted = list(parameters)
        for index, each in enumerate(inspect.signature(method).parameters.values()):
            if each.kind is each.POSITIONAL_OR_KEYWORD:
                fits = accepted[index : index + 1] == [each.name]
            else:
                fits = each.name in accepted or each.kind is not each.KEYWORD_ONLY
            if not fits:
                yield f"{name} does not accept {each.name} as before"
