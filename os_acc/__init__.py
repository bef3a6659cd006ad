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

"""Make a host's accelerators ready for guests, and take them back.

This is the whole public API. Nova compute calls :func:`initialize` once,
:func:`plug` before it makes a domain and :func:`unplug` when that has ended.
Everything else is imported when it is first needed: importing this module
costs next to nothing.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from os_acc.objects.device import Provider
    from os_acc.placement.publisher import Published
    from os_acc.placement.tree import ProviderTree

__all__ = [
    "attached",
    "host_info",
    "initialize",
    "plug",
    "providers",
    "rekey",
    "requests_accelerators",
    "sync_placement",
    "unplug",
    "update_provider_tree",
]


def initialize(reset: bool = False) -> None:
    """Make the library ready: plugins, journal, devices.

    A second call does nothing; ``reset=True`` reads the options and loads
    the plugins anew. What a crash has left unfinished goes back or goes on;
    what an instance has is never touched.

    :param reset: do it all again.
    :raises CyborgAgentUnavailable: the library cannot serve; subclasses say
        why: HelperUnavailable, StateUnavailable, InitializeTimeout.
    :raises InvalidConfiguration: an option has a value that cannot be used.
    """
    from os_acc.service import initialize as make_ready

    make_ready(reset=reset)


def plug(
    instance_info: Mapping[str, Any],
    selected_rp: Mapping[str, Any] | None = None,
    flavor_extra_specs: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Make the accelerators of an instance ready for its guest.

    All or nothing; the same request again returns the same entries. The
    arguments are never changed.

    :param instance_info: ``uuid``, and optionally ``name``, ``project_id``
        and ``image_id`` of the instance.
    :param selected_rp: ``{"uuid": RP}``; or an allocation request of
        Placement with ``allocations`` and, where they are known,
        ``mappings``; or None: make what is recorded for this instance ready
        again, after a reboot.
    :param flavor_extra_specs: the flavor's extra specs.
    :returns: one entry for each accelerator: the specification's ``pci_id``
        and what Nova's libvirt driver reads of a bound accelerator request
        (``uuid``, ``attach_handle_type``, ``attach_handle_uuid``,
        ``attach_handle_info``, ``device_rp_uuid``, ``state``), besides
        ``request_group`` and ``numa_node``.
    :raises InvalidInput: an argument is not what it should be.
    :raises ConsumerConflict: the instance has accelerators of another
        request.
    :raises ProviderNotFound: the provider is not one of this host's.
    :raises NoDeviceAvailable: too few of its devices are free.
    :raises LeaseNotFound: nothing is recorded, and nothing is selected.
    :raises HostError: as the host refused a step; the subclass says which.
    :raises OsAccError: any other; nothing is left changed, or the error's
        notes say what could not be given back.
    """
    from os_acc.service import get

    return get().plug(instance_info, selected_rp, flavor_extra_specs)


def unplug(instance_info: Mapping[str, Any]) -> int:
    """Give back everything that an instance has.

    :param instance_info: needs only the instance's ``uuid``.
    :returns: how many accelerators were released; 0 where it had none.
    :raises InvalidInstanceInfo: there is no uuid in it.
    :raises DevicesUnreleased: some could not be given back; it carries both
        lists. The rest is released.
    :raises LockTimeout: somebody else is at work on this instance.
    """
    from os_acc.service import get

    return get().unplug(instance_info)


def rekey(consumer: str, new_consumer: str) -> int:
    """Move all leases of a consumer to another one, as they are.

    For a resize: the source's leases go to the migration's uuid, where they
    are neither offered nor given back until it is confirmed or reverted.

    :returns: how many leases were moved.
    :raises InvalidInput: one of them is no uuid.
    :raises LeaseNotFound: the old consumer has none.
    :raises ConsumerConflict: the new consumer has leases already.
    """
    from os_acc.service import get

    return get().rekey(consumer, new_consumer)


def requests_accelerators(flavor_extra_specs: Mapping[str, str] | None) -> bool:
    """Whether a flavor asks for anything that this host's os_acc offers.

    :raises InvalidExtraSpec: as :func:`plug` would refuse them.
    """
    from os_acc.service import get

    return get().requests_accelerators(flavor_extra_specs)


def attached(
    instance_info: Mapping[str, Any] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """What each consumer has: its uuid, and entries as plug returned them.

    :param instance_info: only this instance's; None: everybody's.
    """
    from os_acc.service import get

    return get().attached(instance_info)


def providers() -> tuple[Provider, ...]:
    """The resource providers of this host's accelerators, as of now."""
    from os_acc.service import get

    return get().providers()


def update_provider_tree(provider_tree: ProviderTree, nodename: str) -> None:
    """Put this host's accelerators into Nova's provider tree.

    For the virt driver's method of the same name, which Nova calls in every
    claim and holds a lock meanwhile: what is put there was seen before, by
    the last plug for example, and waits for nothing. Where that is more than
    a minute old, a look at the host begins in a thread, for the next call.

    Each provider is a child of the compute node, with what it has of one
    resource class: ``total`` is what is free, leased or out of order,
    ``reserved`` what is out of order. The inventory of our providers is
    os_acc's; traits that others have added stay, and other providers are not
    touched. The regions of an FPGA card stand below a provider of the card's.
    Nothing is changed that is there already. A provider of ours whose device
    is not offered any more stays, all of it reserved: something of it may be
    allocated, and Nova's whole update would fail if it went.

    :param provider_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param nodename: the compute node's name in it. It may differ from
        ``[os_acc] node_name``, of which the providers' own names are made.
    :raises InvalidInput: one of them is not that.
    :raises NodeNotFound: the tree has no such compute node.
    """
    from os_acc.service import get

    get().update_provider_tree(provider_tree, nodename)


def sync_placement() -> Published:
    """Make Placement itself hold this host's accelerators.

    For a service that wants it so, every minute for example; where the virt
    driver calls :func:`update_provider_tree`, nobody needs this. It looks at
    the host, asks what Placement has below the compute node
    (``[os_acc_placement]``), and changes what differs: what is offered as
    there, and providers that are not offered any more, of which nothing is
    allocated, are deleted. Where nothing has changed it asks once. What
    others have made is never touched. A change that is refused is told in the
    answer, and keeps no other from being made.

    :returns: ``done`` and ``refused``, the changes that were made and those
        that were not, with their errors; ``reads`` and ``writes``, how many
        requests it took.
    :raises NodeNotPublished: Placement has no such compute node yet; it is
        never made here.
    :raises PlacementUnavailable: Keystone or Placement do not answer, or not
        in ``[os_acc_placement] sync_timeout``.
    :raises PlacementTooOld: Placement knows no microversion that will do.
    :raises InvalidConfiguration: it does not let us in, or is not there.
    :raises OsAccError: the host cannot be looked at, or the state not used.
    """
    from os_acc.service import sync_placement as sync

    return sync()


def host_info() -> dict[str, Any]:
    """The plugins, their versions, and what could not be loaded."""
    from os_acc.service import get

    return get().host_info()
