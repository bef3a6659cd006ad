# SPDX-License-Identifier: Apache-2.0

"""Intel QuickAssist: an entire PF, or its VFs.

The PF's driver stays with the host and decides on the services of all VFs
(Documentation/ABI/testing/sysfs-driver-qat). Without ``qat/`` in sysfs, as with C62x,
the services are unknown, and there are no traits for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Final

from os_acc import exception
from os_acc.host.attributes import function_path, read_text
from os_acc.objects import qat
from os_acc.objects.device import Device, MatchedFunction, UsableFunction, with_faults
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.plugins import base, pci
from os_acc.privsep import qat as privileged

_UP: Final = "up"


@dataclasses.dataclass(frozen=True, slots=True)
class _Pf:
    """The properties that the VFs of a PF have in common.

    :ivar fault: the fault of all VFs; '' for none.
    """

    traits: frozenset[str] = frozenset()
    fault: str = ""


class QatPlugin(base.PluginBase):
    """One provider for each PF; its VFs are the capacity."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    health_step = privileged.heartbeat

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        usable = [each for each in candidates.usable if _is_qat(each)]
        pfs = self._pfs(usable)

        def offer_of(each: UsableFunction | MatchedFunction) -> pci.Offer | None:
            if not _is_qat(each):
                return None
            return pci.offer(each, pfs.get(each.parent.address, _Pf()).traits)

        faults: dict[DeviceAddress, str] = {
            each.function.address: pfs[each.parent.address].fault
            for each in usable
            if each.parent.address in pfs and pfs[each.parent.address].fault
        }
        devices = pci.devices(self.name, candidates, usable, offer_of)
        if not faults:
            return devices
        return [
            dataclasses.replace(each, handles=with_faults(each.handles, faults))
            for each in devices
        ]

    def _pfs(self, usable: Iterable[UsableFunction]) -> dict[PciAddress, _Pf]:
        """Read each PF with VFs once.

        An entire PF that a guest gets is configured by the guest's driver.
        """
        pfs: dict[PciAddress, _Pf] = {}
        last: PciFunction | None = None
        for each in usable:
            if each.parent is not last:
                last = each.parent
                if last.address != each.function.address:
                    pfs[last.address] = self._read(last.address)
        return pfs

    def _read(self, pf: PciAddress) -> _Pf:
        try:
            state = read_text(function_path(self.root, pf, qat.STATE))
            services = read_text(function_path(self.root, pf, qat.SERVICES))
        except exception.HostStepFailed as error:
            if exception.is_exhaustion(error):
                raise
            return _Pf(fault=f"its PF is out of order: {error.message}")
        # A later kernel may have more services.
        parts = (services or "").split(";")
        names = (each.name for each in qat.QatService if each in parts)
        traits = frozenset(f"CUSTOM_QAT_{name}" for name in names)
        if state in (None, "", _UP):
            return _Pf(traits)
        return _Pf(traits, f"its PF {pf} is {state} (qat/state)")


def _is_qat(each: UsableFunction | MatchedFunction) -> bool:
    identity = each.function.identity
    return (identity.vendor, identity.product) in qat.IDS
