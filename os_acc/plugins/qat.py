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
from os_acc.objects.device import Device, MatchedFunction, with_faults
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress
from os_acc.plugins import base, pci
from os_acc.privsep import qat as privileged

_UP: Final = (None, "", "up")
_NO_TRAITS: Final = frozenset[str]()


class QatPlugin(base.PluginBase):
    """One provider for each PF; its VFs are the capacity."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    health_step = privileged.heartbeat

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        usable = [each for each in candidates.usable if _is_qat(each)]
        # An entire PF that a guest gets is configured by the guest's driver.
        vfs = [e for e in usable if e.parent.address != e.function.address]
        pfs = {
            address: self._read(address) for address in {e.parent.address for e in vfs}
        }

        def offer_of(each: MatchedFunction) -> pci.Offer | None:
            if not _is_qat(each):
                return None
            found = pfs.get(each.parent.address)
            return pci.offer(each, found[0] if found else _NO_TRAITS)

        faults: dict[DeviceAddress, str] = {
            each.function.address: fault
            for each in vfs
            if (fault := pfs[each.parent.address][1])
        }
        devices = pci.devices(self.name, candidates, usable, offer_of)
        if not faults:
            return devices
        return [
            dataclasses.replace(each, handles=with_faults(each.handles, faults))
            for each in devices
        ]

    def _read(self, pf: PciAddress) -> tuple[frozenset[str], str]:
        """Return the traits of a PF's services, and the fault of all its VFs or ''."""
        try:
            state = read_text(function_path(self.root, pf, qat.STATE))
            services = read_text(function_path(self.root, pf, qat.SERVICES))
        except exception.HostStepFailed as error:
            if exception.is_exhaustion(error):
                raise
            return frozenset(), f"its PF is out of order: {error.message}"
        # A later kernel may have more services.
        parts = (services or "").split(";")
        names = (each.name for each in qat.QatService if each in parts)
        traits = frozenset(f"CUSTOM_QAT_{name}" for name in names)
        fault = f"its PF {pf} is {state} (qat/state)" if state not in _UP else ""
        return traits, fault


def _is_qat(each: MatchedFunction) -> bool:
    identity = each.function.identity
    return (identity.vendor, identity.product) in qat.IDS
