# SPDX-License-Identifier: Apache-2.0

"""NVIDIA's vGPUs on virtual functions, from Linux 6.8 on.

A VF stays on NVIDIA's driver and becomes a vGPU of the type that ``device_spec`` gives
it (``vgpu_type``). See :mod:`os_acc.host.mdev` for the attributes. A card of an earlier
generation has mediated devices instead: sysfs decides.
"""

from __future__ import annotations

import dataclasses
import errno
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, TypeAlias

from os_acc.host import mdev
from os_acc.objects.drivers import NVIDIA
from os_acc.plugins import base, pci
from os_acc.privsep import vgpu as steps_of_vgpu

# VGPU is Nova's own, for mediated devices.
_RESOURCE_CLASS: Final = "CUSTOM_ACCELERATOR_VGPU"
# The driver refuses to delete a vGPU that a guest holds.
_HELD: Final = frozenset({errno.EBUSY, errno.EPERM})

# A card, the type of its vGPUs, and how they are offered.
_Offer: TypeAlias = tuple[base.PciAddress, int, str, frozenset[str]]


class NvidiaPlugin(base.PluginBase):
    """One provider for each card and type; its VFs are the capacity."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    own_vfio_drivers: ClassVar[Sequence[str]] = (NVIDIA,)

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        offers: defaultdict[_Offer, list[base.UsableFunction]] = defaultdict(list)
        for usable in candidates.usable:
            if usable.driver == NVIDIA and usable.tags.vgpu_type:
                offers[_offer(usable)].append(usable)
        for offer, alike in offers.items():
            _card, kind, resource_class, traits = offer
            origin = _origin(offer, candidates)
            yield base.Device(
                plugin=self.name,
                address=origin.address,
                identity=origin.identity,
                resource_class=resource_class,
                traits=traits,
                handles=tuple(self._handle(each, kind) for each in alike),
                numa_node=origin.numa_node,
                erasure=base.Erasure.REMOVAL,
            )

    def _handle(self, usable: base.UsableFunction, kind: int) -> base.AttachHandle:
        """Return the handle of a VF; faulty: unreadable, or without capacity left."""
        address = usable.function.address
        try:
            # A VF that is a vGPU already is leased: the library rejects the others.
            if mdev.vgpu_type(self.root, address) or kind in mdev.creatable_vgpu_types(
                self.root, address
            ):
                return usable.handle()
            fault = f"its card has no capacity left for a vGPU of type {kind}"
        except base.HostStepFailed as error:
            if error.retryable:
                raise
            # One VF costs the others nothing.
            fault = f"its vGPU types cannot be read: {error.message}"
        return dataclasses.replace(usable.handle(), fault=fault)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        if not handle.vgpu_type:
            raise base.HostStepFailed(
                f"the lease of {handle.address} does not record the type of its vGPU",
                address=str(handle.address),
                hint="unplug the instance, then plug it again",
            )
        try:
            steps.run(steps_of_vgpu.create_vgpu, handle.vgpu_type)
        except base.HostStepFailed as error:
            # The error number is not documented; the driver's list shows the cause.
            is_denied = error.reason is base.StepReason.DENIED
            if is_denied or self._has_capacity(handle):
                raise
            raise base.HostStepFailed(
                f"{handle.address} cannot become a vGPU of type {handle.vgpu_type}: "
                "its card has no capacity left for one",
                address=str(handle.address),
                errno=error.errno,
                hint="another guest has to release its vGPU first; give vgpu_type in "
                "[os_acc] device_spec to no more VFs than the card can have vGPUs",
                reason=base.StepReason.NO_CAPACITY,
            ) from error

    def _has_capacity(self, handle: base.AttachHandle) -> bool:
        """Return whether the VF of a refused vGPU may have one; also if unreadable."""
        address = handle.address
        if not isinstance(address, base.PciAddress):
            return True
        try:
            is_vgpu = mdev.vgpu_type(self.root, address) != 0
            creatable = mdev.creatable_vgpu_types(self.root, address)
        except base.HostStepFailed:
            return True
        return is_vgpu or handle.vgpu_type in creatable

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        try:
            steps.run(steps_of_vgpu.delete_vgpu)
        except base.DeviceGone:
            # Its vGPU has gone with it.
            return
        except base.HostStepFailed as error:
            if error.errno in _HELD:
                raise base.DeviceInUse(
                    f"{handle.address} cannot be deleted as a vGPU: a guest holds it",
                    address=str(handle.address),
                ) from error
            if error.errno == errno.ENODATA:
                raise base.HostStepFailed(
                    f"{handle.address} is a vGPU, and the helper's mark that its lease "
                    "has created it is lost",
                    address=str(handle.address),
                    hint="write 0 to its nvidia/current_vgpu_type, unless another tool "
                    f"has made it; then run 'os-acc device release {handle.address}'",
                ) from error
            raise


def _offer(each: base.MatchedFunction) -> _Offer:
    tags = each.tags
    own = {pci.id_trait(each.function.identity), f"CUSTOM_VGPU_NVIDIA_{tags.vgpu_type}"}
    return (
        each.parent.address,
        tags.vgpu_type,
        tags.resource_class or _RESOURCE_CLASS,
        tags.traits | own,
    )


def _origin(offer: _Offer, candidates: base.Candidates) -> base.PciFunction:
    """Return the VF that names a provider: the recorded one, or else the first."""
    alike = [
        each.function
        for each in candidates.matched
        if each.tags.vgpu_type and _offer(each) == offer
    ]
    recorded = (each for each in alike if each.address in candidates.provider_addresses)
    return next(recorded, alike[0])
