# SPDX-License-Identifier: Apache-2.0

"""Attach accelerators to instances, and release them.

This is the API for virt drivers. Nova compute calls :func:`initialize` once,
:func:`plug` before it creates a domain, and :func:`unplug` after the domain has
ended. Accelerator requests, as Cyborg's API has them, are in
:mod:`os_acc.requests`; errors are in :mod:`os_acc.exception`; the dictionaries that
are accepted and returned are in :mod:`os_acc.objects.api`.

Importing this module imports nothing else: each function imports its
implementation on the first call.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from oslo_config import cfg

    from os_acc.node import Node
    from os_acc.objects.api import (
        AcceleratorEntry,
        HostInfo,
        InstanceDict,
        MigratingDevice,
        ProviderEntry,
        SyncReport,
    )
    from os_acc.placement.provider_tree import ProviderTree

__all__ = [
    "Node",
    "attached",
    "held_seconds",
    "host_info",
    "initialize",
    "migration_pairs",
    "migration_source",
    "owns_any",
    "plug",
    "providers",
    "recorded",
    "rekey",
    "requests_accelerators",
    "sync_placement",
    "unplug",
    "update_provider_tree",
    "withdraw_providers",
]


def __getattr__(name: str) -> Any:
    if name == "Node":
        from os_acc.node import Node

        return Node
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def initialize(
    reset: bool = False,
    *,
    wait_for_placement: bool = False,
    node_name: str | None = None,
    config: cfg.ConfigOpts | None = None,
    unmanaged: bool = False,
) -> Node:
    """Read the options, load the plugins and discover the devices of a node.

    Operations that a crash has interrupted are finished or undone; accelerators
    of instances are left as they are. A second call for the same node only returns
    the handle.

    A process may serve several nodes, each with a ``config``, a ``device_spec`` and a
    ``state_path`` of its own. They share the host, and the privileged helpers, which
    read the global configuration. The functions of this module then serve the node
    that was last initialized without ``node_name``. A process with one node may use
    them with or without ``node_name``.

    :param reset: read the options and load the plugins again.
    :param wait_for_placement: publish as :func:`sync_placement` does, in every call,
        and return once Placement has all devices and traits. False where Nova
        publishes them (:func:`update_provider_tree`): Nova does so only after its
        driver is initialized.
    :param node_name: the name of the compute node, as in Nova; used unless ``[os_acc]
        node_name`` is set. None: the host name.
    :param config: the service's configuration; None: ``oslo_config.cfg.CONF``.
    :param unmanaged: whether the caller attaches the functions of entries that have
        ``vfio_driver`` with libvirt's ``managed='no'``. Otherwise devices that keep
        another VFIO driver than vfio-pci are not offered: with ``managed='yes'``,
        libvirt binds them to vfio-pci.
    :returns: the handle of the node, the same one in each call.
    :raises InvalidInput: an argument has the wrong type, or ``node_name`` is not valid
        text for Placement.
    :raises CyborgAgentUnavailable: the library cannot serve; the subclass says
        why: HelperUnavailable, StateUnavailable, InitializeTimeout. With
        ``wait_for_placement`` also if Placement does not answer, or does not have
        the compute node, until ``[os_acc] initialize_timeout``; the library serves
        nevertheless, and another call waits again.
    :raises InvalidConfiguration: an option has an invalid value; another node of this
        process has the same ``state_path``; with ``wait_for_placement`` also if the
        access to Placement is not configured.
    :raises ServiceError: with ``wait_for_placement``: Placement refuses a change, or
        is too old.
    """
    from os_acc import service

    ready = service.initialize(
        reset,
        wait_for_placement=wait_for_placement,
        node_name=node_name,
        config=config,
        unmanaged=unmanaged,
    )
    return service.nodes.service(ready.settings.node_name).node


def plug(
    instance_info: InstanceDict,
    selected_rp: Mapping[str, Any] | None = None,
    flavor_extra_specs: Mapping[str, str] | None = None,
) -> list[AcceleratorEntry]:
    """Attach accelerators to an instance: all of them, or none.

    Call it before the guest is defined, whenever the guest's process starts: see
    "Server operations" in the manual. The same request again returns the same entries.
    If the instance has NUMA cells, accelerators that it holds already are compared with
    them: ``numa_affinity`` is to these cells, and a device that its NUMA policy does
    not allow there is replaced. The entry keeps its ``uuid``. If its ``image_id`` is
    another image than before (a rebuild), FPGA regions that it holds get the contents
    that this image requests. The arguments are not changed.

    :param instance_info: the instance; only ``uuid`` is required.
    :param selected_rp: ``{"uuid": RP}``; or an allocation request of Placement:
        ``allocations``, and ``mappings`` if they are known; or None to make the
        recorded accelerators of the instance ready again, after a reboot for
        example. In that case no device profile is read.
    :param flavor_extra_specs: the extra specs of the flavor.
    :returns: an entry for each accelerator.
    :raises InvalidInput: an argument is invalid.
    :raises Conflict: the instance has accelerators of another request.
    :raises ProviderNotFound: a provider is not one of this host.
    :raises NoDeviceAvailable: a provider has too few free devices; its ``reason``
        is ``NUMA_POLICY`` if there are enough, but too few that the policy allows, or
        if the instance holds one that the policy does not allow and there is no other,
        and ``NETWORK`` if the guest's NUMA cells do not lead to its networks. A guest
        that holds its accelerators for these cells already may have any networks.
    :raises DeviceInUse: a process has the device, or the guest runs and a device of
        it has to be replaced.
    :raises NotFound: by its ``kind``, nothing is selected and no lease is recorded, or
        the device profile of the flavor does not exist.
    :raises ServiceUnavailable: the source of device profiles does not respond, or
        is not configured although accelerators of this host are allocated for the
        profile.
    :raises HostError: the host refused a step; see the subclass.
    :raises OsAccError: any other error. The host is unchanged, or notes on the error
        name the devices that could not be released.
    """
    return _node().plug(instance_info, selected_rp, flavor_extra_specs)


def unplug(instance_info: InstanceDict) -> int:
    """Release all accelerators of an instance.

    Call it when the guest has ended and Nova gives up the allocation: when a server is
    deleted or offloaded, and for the migration when a resize is confirmed. A stopped,
    shelved or soft-deleted server keeps its accelerators as it keeps its allocation.

    A device that an earlier unplug has quarantined waits for an operator. It is
    neither counted nor an error, so that Nova can delete the server; a warning in
    the log names the device.

    :param instance_info: the instance; only ``uuid`` is read.
    :returns: the number of released accelerators.
    :raises InvalidInput: ``uuid`` is missing or invalid.
    :raises DevicesUnreleased: some accelerators could not be released; the error
        lists the released and the unreleased ones. The service retries releases
        that failed for a temporary cause; ``retryable`` is true if all of them did.
    :raises LockTimeout: another operation on the instance is running.
    """
    return _node().unplug(instance_info)


def rekey(consumer: str, new_consumer: str) -> int:
    """Move all leases of a consumer to another consumer, unchanged.

    A resize moves the leases of the source host to the UUID of the migration, where
    they are neither offered nor released until the resize is confirmed or reverted.

    :returns: the number of leases moved.
    :raises InvalidInput: an argument is not a UUID.
    :raises NotFound: the consumer has no lease.
    :raises Conflict: the new consumer has leases already.
    """
    return _node().rekey(consumer, new_consumer)


def migration_source(instance_info: InstanceDict) -> list[MigratingDevice]:
    """Return the devices of an instance that is about to be migrated live.

    :param instance_info: the instance; only ``uuid`` is read.
    :returns: each device, with the reason if it cannot be migrated.
    :raises InvalidInput: ``uuid`` is missing or invalid.
    :raises HostStepFailed: an attribute of a device cannot be read.
    :raises PluginFailed: a plugin does not state what the target has to equal.
    """
    return _node().migration_source(instance_info)


def migration_pairs(
    instance_info: InstanceDict, devices: Sequence[MigratingDevice]
) -> dict[str, str]:
    """Pair the devices of the source with those that the target has plugged.

    :param devices: those of :func:`migration_source`, at the source.
    :returns: the addresses at the target, by those at the source.
    :raises InvalidInput: ``uuid`` or the devices are invalid.
    :raises NoDeviceAvailable: no device of the instance here can take over one of the
        source; states why.
    :raises HostStepFailed: an attribute of a device cannot be read.
    :raises PluginFailed: a plugin does not state what it is.
    """
    return _node().migration_pairs(instance_info, devices)


def requests_accelerators(flavor_extra_specs: Mapping[str, str] | None) -> bool:
    """Return whether a flavor requests accelerators that this host offers.

    The groups of the flavor's device profile count if the source of device profiles
    is configured. The host is read only if the flavor requests a resource class of
    Placement and none of its classes was ever offered here.

    :raises InvalidExtraSpec: as :func:`plug` raises it.
    :raises NotFound: the device profile does not exist.
    :raises InvalidProfile: the device profile cannot be served by any host.
    :raises ServiceUnavailable: the source of device profiles does not respond.
    :raises HostStepFailed: the host cannot be read.
    """
    return _node().requests_accelerators(flavor_extra_specs)


def owns_any(allocations: Mapping[str, Mapping[str, Any]] | None) -> bool:
    """Return whether any of these allocations is on a provider of this host.

    It is so for a provider that the host has ever offered, whether its device is still
    there or not. The function does not read the host. It reads the store only if an
    allocation on another provider has a resource class of accelerators: another
    process may have published that provider since.

    :param allocations: of an instance, as Nova passes them to ``spawn()``:
        ``{provider: {"resources": {class: amount}}}``; other keys are ignored. None:
        no allocations.
    :raises InvalidAllocation: they have another form.
    :raises StateUnavailable: the store has to be read, and cannot be.
    """
    return _node().owns_any(allocations)


def attached(
    instance_info: InstanceDict | None = None,
) -> dict[str, list[AcceleratorEntry]]:
    """Return the accelerators of each consumer, by the consumer's UUID.

    Only an entry in the state ``Bound`` may reach a guest.

    :param instance_info: an instance; only ``uuid`` is read. None: all consumers.
    """
    return _node().attached(instance_info)


def recorded(
    config: cfg.ConfigOpts | None = None,
) -> dict[str, list[AcceleratorEntry]]:
    """Return the recorded accelerators of each consumer, also without initialization.

    For a process in which :func:`initialize` failed: the answer is that of
    :func:`attached`, from the store alone. Nothing is changed, and of the options only
    ``[os_acc] state_path`` is read. A host without a store has no accelerators on
    record. Damaged records are missing; a warning in the log names their devices.

    Only an entry in the state ``Bound`` may reach a guest, and only after a
    :func:`plug` of this boot has prepared its device.

    :param config: the service's configuration; None: ``oslo_config.cfg.CONF``.
    :raises StateUnavailable: the store cannot be read, or is damaged.
    :raises InvalidConfiguration: ``state_path`` is no absolute path.
    :raises InvalidInput: the argument has the wrong type.
    """
    from os_acc import service

    return service.recorded(config)


def held_seconds(entry: AcceleratorEntry) -> float:
    """Return the age of an accelerator's lease in seconds, by the host's clock.

    A service that looks for leases without a server leaves young ones alone: their
    server may still be in a build.

    :param entry: as :func:`plug`, :func:`attached` or :func:`recorded` returned it;
        only ``created_at`` is read.
    :returns: at least 0, also if the clock was set back meanwhile.
    :raises InvalidInput: ``created_at`` is missing, or no time with a zone.
    """
    from os_acc.attach import serialize

    return serialize.held_seconds(entry)


def providers() -> list[ProviderEntry]:
    """Return the resource providers of this host's accelerators."""
    return _node().providers()


def update_provider_tree(
    provider_tree: ProviderTree, nodename: str, unallocated: Collection[str] = ()
) -> None:
    """Add this host's accelerators to Nova's provider tree.

    For the method of the same name of a virt driver. Nova calls it in every claim
    and holds a lock, so this function does not wait: it uses the inventory of the
    last look at the host. If that is more than a minute old, a thread looks again,
    for the next call.

    Each provider is a child of the compute node with an inventory of one resource
    class: ``total`` counts free, leased and faulty units, ``reserved`` the faulty
    units and those that could not be released. The regions of an FPGA card are
    children of a provider of the card. The inventory of these providers belongs to
    os_acc; traits that others have added stay, and other providers are not
    changed. A provider whose device is no longer offered stays, with all units
    reserved: it may have allocations, and its removal would make Nova's whole
    update fail.

    :param provider_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param nodename: the name of the compute node in the tree. It may differ from
        ``[os_acc] node_name``, which is part of the names of the providers.
    :param unallocated: the ``uuid`` of each accelerator of :func:`attached` that
        Placement has no allocation for. Its unit is reserved: otherwise the scheduler
        would offer it to another consumer.
    :raises InvalidInput: an argument has the wrong type, or the tree has no such
        compute node.
    """
    _node().update_provider_tree(provider_tree, nodename, unallocated)


def withdraw_providers(
    provider_tree: ProviderTree,
    nodename: str,
    *,
    node_name: str | None = None,
    config: cfg.ConfigOpts | None = None,
    added: Mapping[str, Collection[str]] | None = None,
) -> int:
    """Reserve all units of os_acc's providers in Nova's provider tree.

    For the method ``update_provider_tree`` of a virt driver in a process in which
    :func:`initialize` failed: Placement then offers none of the free units, and
    existing allocations stay valid. The next :func:`update_provider_tree` of the
    initialized node restores them.

    A provider is one of os_acc if its name begins with the name of the node and
    ``_accel_``, and its UUID is the one that os_acc derives from that name. Neither the
    store nor the host is read. All resource classes of these providers are reserved,
    also those that others have added. Traits and other providers are not changed.

    :param provider_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param nodename: the name of the compute node in the tree.
    :param node_name: as :func:`initialize` got it.
    :param config: as :func:`initialize` got it; only ``[os_acc] node_name`` is read.
    :param added: the resource classes that Nova's ``provider.yaml`` adds to a provider,
        by its UUID or name. They are removed from the tree: Nova adds them later, and
        its whole update fails if they are there.
    :returns: the number of os_acc's providers in the tree.
    :raises InvalidInput: an argument has the wrong type, or the tree has no such
        compute node.
    :raises InvalidConfiguration: ``[os_acc] node_name`` is not valid text.
    """
    from os_acc import conf, service
    from os_acc.placement import provider_tree as trees

    title = conf.node_name(service.checked_config(config), node_name)
    return trees.withdraw(provider_tree, nodename, title, added or {})


def sync_placement() -> SyncReport:
    """Publish this host's accelerators in Placement, without Nova.

    For a service that calls it periodically, every minute for example; it is not
    needed where a virt driver calls :func:`update_provider_tree`. The function looks
    at the host, reads the providers below the compute node
    (``[os_acc_placement]``) and changes what differs. Providers that are no longer
    offered and have no allocations are deleted. Providers and traits of others are
    not changed. A refused change is part of the result and does not prevent the other
    changes. If nothing has changed, the function sends one request.

    :returns: the changes that were made and refused, and the number of requests.
    :raises NotFound: Placement has no such compute node; os_acc never
        creates it.
    :raises ServiceUnavailable: Keystone or Placement did not respond within
        ``[os_acc_placement] sync_timeout``, or Placement does not support the
        microversion (``reason`` ``TOO_OLD``).
    :raises InvalidConfiguration: the credentials or the endpoint are wrong.
    :raises OsAccError: the host or the state directory cannot be read.
    """
    return _node().sync_placement()


def host_info() -> HostInfo:
    """Return the plugins, their versions, and the plugins that are not used."""
    return _node().host_info()


def _node() -> Node:
    from os_acc.service import nodes

    return nodes.default().node
