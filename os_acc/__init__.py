# SPDX-License-Identifier: Apache-2.0

"""Make a host's accelerators ready for guests, and take them back.

This is the whole public API. Nova compute calls :func:`initialize` once,
:func:`plug` before it makes a domain and :func:`unplug` when that has ended.
Everything else is imported when it is first needed: importing this module
costs next to nothing.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from os_acc.attach.requests import Requests
    from os_acc.objects.accelerator_request import AcceleratorRequest
    from os_acc.objects.device import Provider
    from os_acc.placement.provider_tree import ProviderTree
    from os_acc.placement.sync import SyncResult

__all__ = [
    "attached",
    "bind_requests",
    "create_requests",
    "delete_requests",
    "host_info",
    "initialize",
    "list_requests",
    "plug",
    "providers",
    "rekey",
    "request_events",
    "requests_accelerators",
    "sync_placement",
    "unbind_requests",
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
        and ``image_id`` of the instance; ``numa_cells``: the ids of the host's
        NUMA cells that the guest is fitted to; ``image_properties`` with
        ``hw_pci_numa_affinity_policy``; ``port_numa_policies``: by the suffix
        of the request group that a port has for itself.
    :param selected_rp: ``{"uuid": RP}``; or an allocation request of
        Placement with ``allocations`` and, where they are known,
        ``mappings``; or None: make what is recorded for this instance ready
        again, after a reboot. No device profile is read for that.
    :param flavor_extra_specs: the flavor's extra specs.
    :returns: one entry for each accelerator: the specification's ``pci_id``
        and what Nova's libvirt driver reads of a bound accelerator request
        (``uuid``, ``attach_handle_type``, ``attach_handle_uuid``,
        ``attach_handle_info``, ``device_rp_uuid``, ``state``), besides
        ``request_group``, ``numa_node`` and ``numa_affinity``: "local",
        "unknown", "same socket" or "remote", or None without ``numa_cells``.
    :raises InvalidInput: an argument is not what it should be.
    :raises ConsumerConflict: the instance has accelerators of another
        request.
    :raises ProviderNotFound: the provider is not one of this host's.
    :raises NoDeviceAvailable: too few of its devices are free;
        :class:`.NUMAPolicyUnmet` where they are too far from the guest.
    :raises LeaseNotFound: nothing is recorded, and nothing is selected.
    :raises ProfileNotFound: the flavor names a device profile that there is not.
    :raises ProfilesUnavailable: nobody answers who has it; or nobody has said where
        it is, and accelerators of this host are allocated for it.
    :raises HostError: as the host refused a step; the subclass says which.
    :raises OsAccError: any other; nothing is left changed, or the error's
        notes say what could not be given back.
    """
    from os_acc.service import get

    return get().plug(instance_info, selected_rp, flavor_extra_specs)


def unplug(instance_info: Mapping[str, Any]) -> int:
    """Give back everything that an instance has.

    A device that an earlier unplug has left in quarantine waits for an
    operator. It is neither counted nor an error, so that Nova can delete the
    server; a warning in the log names it.

    :param instance_info: needs only the instance's ``uuid``.
    :returns: how many accelerators were released; 0 where it had none, or
        only quarantined ones.
    :raises InvalidInstanceInfo: there is no uuid in it.
    :raises DevicesUnreleased: some could not be given back; it carries both
        lists. The rest is released. The service retries what failed for a
        cause that can pass; ``retryable`` is true where all did.
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

    The groups of the device profile that it names count, unless nobody has said
    where profiles are.

    :raises InvalidExtraSpec: as :func:`plug` would refuse them.
    :raises ProfileNotFound: there is no device profile of that name.
    :raises InvalidProfile: nobody can be served by it.
    :raises ProfilesUnavailable: nobody answers who has it.
    :raises HostStepFailed: the host cannot be looked at.
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


def create_requests(device_profile: str) -> list[dict[str, Any]]:
    """Make the accelerator requests of a device profile.

    N groups of M accelerators make N*M requests, in the order of the groups.
    Each is as Cyborg's API has it: ``uuid``, ``state`` (``Initial``),
    ``device_profile_name``, ``device_profile_group_id`` (the index of its
    group), and what a binding adds.

    :param device_profile: its name, or its uuid; see ``[os_acc_profiles]``.
    :raises InvalidInput: that is no text.
    :raises ProfileNotFound: there is none.
    :raises InvalidProfile: nobody can be served by it.
    :raises ProfilesUnavailable: nobody answers who has the profiles.
    """
    return [_entry(each) for each in _requests().create(device_profile)]


def bind_requests(bindings: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """Bind accelerator requests: plug what they ask for.

    All requests of an instance are bound together, all or none; the same
    again confirms. One that has failed (``BindFailed``, with its ``reason``)
    is unbound before it is bound again.

    :param bindings: for the uuid of each request ``hostname``,
        ``device_rp_uuid`` and ``instance_uuid``.
    :returns: the requests as they are now: what :func:`plug` returns of each,
        besides what :func:`create_requests` does.
    :raises InvalidInput: that is not what they are; or the requests of one
        instance are of several profiles, or a part of a group.
    :raises RequestNotFound: one of them does not exist.
    :raises RequestConflict: one of them cannot be bound as it is.
    :raises OsAccError: as :func:`plug`.
    """
    return [_entry(each) for each in _requests().bind(bindings)]


def list_requests(
    instance: str | None = None, bind_state: str | None = None
) -> list[dict[str, Any]]:
    """Accelerator requests; also those that a plug has made.

    :param instance: only those that are, or were last, bound to it.
    :param bind_state: ``resolved``: only those that are ``Bound``,
        ``BindFailed`` or ``Deleting``.
    :raises InvalidInput: that is no uuid, or no such word.
    """
    return [_entry(each) for each in _requests().find(instance, bind_state)]


def unbind_requests(uuids: Sequence[str]) -> int:
    """Give back what accelerator requests have; they may be bound again.

    :returns: how many of them had something.
    :raises InvalidInput: that is no list of uuids, or an empty one.
    :raises RequestNotFound: one of them does not exist.
    :raises DevicesUnreleased: some could not be given back.
    """
    return _requests().unbind(uuids)


def delete_requests(
    uuids: Sequence[str] | None = None, *, instance: str | None = None
) -> int:
    """Forget accelerator requests; how many there were.

    :param uuids: of requests that have nothing.
    :param instance: instead of them: all of this instance's, which are unbound
        first. What a plug has given it is given back as well, and counted.
    :raises InvalidInput: neither, or both; or they are no uuids.
    :raises RequestNotFound: one of them does not exist.
    :raises RequestConflict: one of them has something: unbind it first.
    :raises DevicesUnreleased: some could not be given back.
    """
    return _requests().delete(uuids, instance)


def request_events(uuids: Sequence[str]) -> dict[str, Any]:
    """The body of Nova's ``POST /os-server-external-events`` for requests.

    An ``accelerator-request-bound`` for each that is resolved, ``completed``
    or ``failed``; whoever has told Nova's conductor to bind them sends it.

    :raises InvalidInput: that is no list of uuids, or an empty one.
    :raises RequestNotFound: one of them does not exist.
    """
    return _requests().events(uuids)


def _requests() -> Requests:
    from os_acc.attach import requests
    from os_acc.service import get

    manager = get()
    return requests.Requests(manager, manager.profiles.source)


def _entry(request: AcceleratorRequest) -> dict[str, Any]:
    from os_acc.attach import serialize

    return serialize.of_request(request)


def update_provider_tree(provider_tree: ProviderTree, nodename: str) -> None:
    """Put this host's accelerators into Nova's provider tree.

    For the virt driver's method of the same name, which Nova calls in every
    claim and holds a lock meanwhile: what is put there was seen before, by
    the last plug for example, and waits for nothing. Where that is more than
    a minute old, a look at the host begins in a thread, for the next call.

    Each provider is a child of the compute node, with what it has of one
    resource class: ``total`` is what is free, leased or out of order,
    ``reserved`` what is out of order, or could not be released. The inventory
    of our providers is os_acc's; traits that others have added stay, and other
    providers are not touched. The regions of an FPGA card stand below a provider
    of the card's. Nothing is changed that is there already. A provider of ours
    whose device is not offered any more stays, all of it reserved: something of
    it may be allocated, and Nova's whole update would fail if it went.

    :param provider_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param nodename: the compute node's name in it. It may differ from
        ``[os_acc] node_name``, of which the providers' own names are made.
    :raises InvalidInput: one of them is not that.
    :raises NodeNotFound: the tree has no such compute node.
    """
    from os_acc.service import get

    get().update_provider_tree(provider_tree, nodename)


def sync_placement() -> SyncResult:
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
    from os_acc.service import get

    return get().publish()


def host_info() -> dict[str, Any]:
    """The plugins, their versions, and what could not be loaded."""
    from os_acc.service import get

    return get().host_info()
