# SPDX-License-Identifier: Apache-2.0

"""The dictionaries that the public API accepts and returns.

Keys of accelerator requests and of attach handles are those of Cyborg's API,
version 2, as Nova 34 reads them (``nova/virt/libvirt/driver.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NotRequired, Required, TypedDict


class NetworksDict(TypedDict, total=False):
    """The networks of an instance, in the terms of Nova's ``NetworkMetadata``.

    :ivar physnets: the physical networks of its flat networks and VLANs.
    :ivar tunneled: whether it has a tunnelled network (GRE, VXLAN, Geneve).
    """

    physnets: Collection[str]
    tunneled: bool


class InstanceDict(TypedDict, total=False):
    """An instance, as :func:`os_acc.plug` accepts it.

    :ivar name: its name, for the log and for listings.
    :ivar project_id: its project; ``tenant_id`` is the same.
    :ivar image_id: the UUID of the image that it boots; ``image_ref`` and
        ``image_uuid`` are the same.
    :ivar numa_cells: ids of the host's NUMA cells that the guest is fitted to.
        Devices that it holds already are compared with them.
    :ivar networks: its networks; they count with ``numa_cells`` and a selection.
    :ivar image_properties: image properties; only
        ``hw_pci_numa_affinity_policy`` is read.
    :ivar port_numa_policies: NUMA policies of ports, by the suffix of the request
        group of the port.
    """

    uuid: Required[str]
    name: str
    project_id: str
    tenant_id: str
    image_id: str
    image_ref: str
    image_uuid: str
    numa_cells: Sequence[int]
    networks: NetworksDict
    image_properties: Mapping[str, object]
    port_numa_policies: Mapping[str, str]


class AttachHandleInfo(TypedDict, total=False):
    """The parts of a PCI address as hexadecimal text; ``device`` is the slot.

    Of a mediated device it is its parent's address, absent for a virtual parent.

    :ivar asked_type: the type of the mediated device; absent for a PCI function.
    :ivar parent: the name of its parent in ``/sys/class/mdev_bus``; likewise.
    :ivar physical_network: the network of a network card; absent unless the operator
        names one.
    """

    domain: str
    bus: str
    device: str
    function: str
    asked_type: str
    parent: str
    physical_network: str


class MigratingDevice(TypedDict):
    """A device of an instance at the source of a live migration.

    :ivar address: the PCI address, or the UUID of the mediated device.
    :ivar reason: why it cannot be migrated; '' if it can.
    :ivar profile: what the device at the target has to equal, as its plugin states it.
    :ivar state_size: of its state in bytes, as its driver estimates it; 0: unknown.
    """

    address: str
    request_group: str
    reason: str
    profile: str
    state_size: int


class AcceleratorEntry(TypedDict):
    """One accelerator of an instance.

    Only entries in the state ``Bound`` may reach a guest: the others belong to an
    operation that is in progress, or has failed. :func:`os_acc.plug` returns no others;
    :func:`os_acc.attached` and :func:`os_acc.recorded` return all entries.

    :ivar pci_id: the PCI address; absent where the accelerator stays with the host, and
        for a mediated device, whose parent must not reach a guest.
    :ivar held_pci_ids: the other functions of its IOMMU group that the lease holds, on
        VFIO drivers: another GPU of the group, or the audio function of this one. No
        guest has them unless the caller attaches them as well; absent if none.
    :ivar attach_handle_uuid: of a mediated device, its UUID in
        ``/sys/bus/mdev/devices``.
    :ivar state: one of the states of Cyborg's accelerator requests: ``BindStarted``, a
        plug is in progress or was interrupted; ``Bound``; ``Deleting``, a release is in
        progress or will be retried; ``UnbindFailed``, the device is quarantined until
        an operator releases it.
    :ivar numa_affinity: to the guest's cells: ``local``, ``unknown``, ``same
        socket`` or ``remote``; None before a plug has ``numa_cells``.
    :ivar vfio_driver: the VFIO driver on which the guest finds the function; absent if
        it is vfio-pci. Attach such a function with ``managed='no'``: libvirt would bind
        it to vfio-pci otherwise.
    :ivar vfio_cdev: the node with which a monitor opens the device through iommufd,
        ``/dev/vfio/devices/vfioN``, as sysfs shows it now: a bind to a VFIO driver may
        give it another number (Documentation/driver-api/vfio.rst, "VFIO Device cdev";
        Documentation/ABI/testing/sysfs-devices-vfio-dev). Absent on a kernel without
        CONFIG_VFIO_DEVICE_CDEV, while the device is on no VFIO driver, and in the
        entries of :func:`os_acc.recorded`.
    :ivar function_id: the UUID of the function of an FPGA region that it reaches;
        absent if none was requested.
    :ivar is_spare: True if it serves no request of the instance, since another device
        has taken its place, or keeps it: the guest does not wait for it. Else absent.
    :ivar created_at: when the consumer got the accelerator, by the host's clock: ISO
        8601 with microseconds and zone (UTC). A confirmation, a :func:`os_acc.rekey`
        and the replacement of the device keep it; :func:`os_acc.held_seconds`
        returns the age.
    """

    pci_id: NotRequired[str]
    held_pci_ids: NotRequired[list[str]]
    vfio_driver: NotRequired[str]
    vfio_cdev: NotRequired[str]
    function_id: NotRequired[str]
    is_spare: NotRequired[bool]
    uuid: str
    state: str
    attach_handle_type: str
    attach_handle_uuid: str
    attach_handle_info: AttachHandleInfo
    device_rp_uuid: str
    instance_uuid: str
    request_group: str
    numa_node: int | None
    numa_affinity: str | None
    created_at: str


class RequestEntry(TypedDict):
    """An accelerator request.

    The keys of :class:`AcceleratorEntry` are there while it is bound.

    :ivar device_profile_group_id: the index of its group in the device profile; None
        if a plug created the request without a profile.
    :ivar reason: why it failed, or empty.
    """

    uuid: str
    state: str
    device_profile_name: str
    device_profile_group_id: int | None
    hostname: str | None
    device_rp_uuid: str | None
    instance_uuid: str | None
    reason: str
    attach_handle_type: str
    attach_handle_uuid: str | None
    attach_handle_info: AttachHandleInfo
    pci_id: NotRequired[str]
    held_pci_ids: NotRequired[list[str]]
    vfio_driver: NotRequired[str]
    request_group: NotRequired[str]
    numa_node: NotRequired[int | None]
    numa_affinity: NotRequired[str | None]
    created_at: NotRequired[str]


class ExternalEvent(TypedDict):
    """One event of Nova's ``POST /os-server-external-events``."""

    name: str
    tag: str
    server_uuid: str
    status: str


class ExternalEvents(TypedDict):
    """The body of Nova's ``POST /os-server-external-events``."""

    events: list[ExternalEvent]


class RefusedEventEntry(TypedDict):
    """An event that Nova did not accept.

    :ivar uuid: of the accelerator request.
    :ivar code: Nova's: 404 without such a server, 422 while it is on no host.
    """

    uuid: str
    code: int
    error: str


class NotifyReport(TypedDict):
    """Nova's answer to the events of accelerator requests.

    :ivar sent: the UUIDs of the requests whose events Nova has passed on.
    :ivar unresolved: the UUIDs of those without an event: neither bound nor failed.
    """

    sent: list[str]
    refused: list[RefusedEventEntry]
    unresolved: list[str]


class ProviderEntry(TypedDict):
    """A resource provider of this host.

    :ivar parent: the name of the provider of its card; empty below the compute node.
    :ivar total: its units of the resource class.
    :ivar traits: sorted.
    :ivar addresses: the PCI addresses that guests can be given, sorted.
    :ivar numa_node: the NUMA node of the device, None if the kernel reports none.
    """

    uuid: str
    name: str
    parent: str
    plugin: str
    resource_class: str
    total: int
    traits: list[str]
    addresses: list[str]
    numa_node: int | None


class RefusedChangeEntry(TypedDict):
    """A change that Placement refused.

    :ivar retryable: whether the next synchronization may succeed.
    """

    change: str
    error: str
    retryable: bool


class SyncReport(TypedDict):
    """The result of one synchronization with Placement.

    :ivar reads: requests that changed nothing; ``writes``: requests for a change.
    """

    done: list[str]
    refused: list[RefusedChangeEntry]
    reads: int
    writes: int


class PluginEntry(TypedDict):
    """A loaded plugin, with the version of the plugin contract that it implements."""

    name: str
    contract: list[int]


class DisabledPluginEntry(TypedDict):
    """A plugin that is not used, and why."""

    name: str
    reason: str


class HostInfo(TypedDict):
    """The plugins of this host.

    :ivar contract: the version of the plugin contract that os_acc implements.
    """

    contract: list[int]
    plugins: list[PluginEntry]
    set_aside: list[DisabledPluginEntry]
