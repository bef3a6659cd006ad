# SPDX-License-Identifier: Apache-2.0

"""Plugins with one bug each, as vendors write them.

Each of the first kind describes its first card wrongly, and all others as it should.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from oslo_config import cfg

from os_acc.plugins import base
from tests.unit import acme
from tests.unit.plugins.planted_values import (
    Address,
    DerivedDevice,
    Number,
    Text,
    Traits,
    Unspeakable,
    region,
    with_handle,
)

HERE: Final = "tests.unit.plugins.planted_bugs"
#: A function of another family, which the generic plugin offers.
GPU: Final = base.PciAddress.parse("0000:17:00.0")
#: A function that the operator has not named.
STRANGER: Final = base.PciAddress.parse("0000:04:00.0")


class Planted(acme.Acme):
    """Describes its first card wrongly.

    :cvar changes: the wrong values of the device.
    """

    changes: ClassVar[dict[str, Any]] = {}

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        first, *others = (
            each
            for each in candidates.usable
            if each.function.identity.vendor == self.conf.vendor
        )
        yield from self.wrong(acme.device(self, first), first)
        for each in others:
            yield acme.device(self, each)

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, **self.changes)


# -- wrong types -----------------------------------------------------------------


class AddressIsText(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, address=str(right.address))  # type: ignore[arg-type]


class IdentityIsText(Planted):
    changes: ClassVar[dict[str, Any]] = {"identity": "10ee:5000"}


class IdentityHasText(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        identity = dataclasses.replace(right.identity, vendor="10ee")  # type: ignore[arg-type]
        yield dataclasses.replace(right, identity=identity)


class TraitsAreSorted(Planted):
    changes: ClassVar[dict[str, Any]] = {"traits": ["CUSTOM_ACME"]}


class TraitIsNumber(Planted):
    changes: ClassVar[dict[str, Any]] = {"traits": frozenset({5000})}


class HandlesAreListed(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, handles=list(right.handles))  # type: ignore[arg-type]


class HandleWithoutComma(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, handles=(usable.handle()))  # type: ignore[arg-type]


class HandleIsFunction(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, handles=(usable,))  # type: ignore[arg-type]


class HandlesAreUsedUp(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, handles=iter(right.handles))  # type: ignore[arg-type]


class NodeIsMinusOne(Planted):
    """Passes on what sysfs has for a device without a NUMA node."""

    changes: ClassVar[dict[str, Any]] = {"numa_node": -1}


class NodeIsText(Planted):
    changes: ClassVar[dict[str, Any]] = {"numa_node": "0\n"}


class FaultIsMissing(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield with_handle(right, fault=None)


class RegionIsText(Planted):
    changes: ClassVar[dict[str, Any]] = {"region": "region 0"}


class RegionFunctionIsName(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, region=region(right, function_id="gzip"))


class RegionFunctionsAreMapped(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        functions = {right.address: "gzip"}
        yield dataclasses.replace(right, region=region(right, functions=functions))


class RegionCardIsText(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        card = str(right.address)
        yield dataclasses.replace(right, region=region(right, card=card))


class ClassOfNova(Planted):
    changes: ClassVar[dict[str, Any]] = {"resource_class": "VCPU"}


class ErasureIsText(Planted):
    changes: ClassVar[dict[str, Any]] = {"erasure": "reset"}


class ErasesNothing(Planted):
    changes: ClassVar[dict[str, Any]] = {"erasure": base.Erasure.PLUGIN}


class RemovesFunction(Planted):
    changes: ClassVar[dict[str, Any]] = {"erasure": base.Erasure.REMOVAL}


# -- rejections ------------------------------------------------------------------


class ReasonIsText(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield base.RejectedDevice(right.address, "it is too hot")  # type: ignore[arg-type]


class ReasonOfTheLibrary(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield base.RejectedDevice(right.address, base.RejectReason.UNKNOWN_STATE)


class DetailIsError(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        reason, error = base.RejectReason.UNREADABLE, OSError("no firmware")
        yield base.RejectedDevice(right.address, reason, error)  # type: ignore[arg-type]


class DetailIsNotUnicode(Planted):
    """Passes on bytes of the firmware, as ``os.fsdecode()`` returns them."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(right.address, reason, "model \udcff\udcff")


class VendorReasonIsNumber(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        class Code(base.VendorReason):
            OLD_FIRMWARE = 12

        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(
            right.address, reason, vendor_reason=Code.OLD_FIRMWARE
        )


class VendorReasonIsDerived(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        class Phrase(str):
            __slots__ = ()

        class Code(base.VendorReason):
            OLD_FIRMWARE = Phrase("its firmware is too old")

        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(
            right.address, reason, vendor_reason=Code.OLD_FIRMWARE
        )


class RejectedAndOffered(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield right
        yield base.RejectedDevice(right.address, base.RejectReason.MANAGEMENT)


# -- handles and names -----------------------------------------------------------


class NoHandles(Planted):
    changes: ClassVar[dict[str, Any]] = {"handles": ()}


class Altered(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield with_handle(right, iommu_group=right.handles[0].iommu_group + 1)


class Twice(Planted):
    """Offers one function as two accelerators."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, handles=right.handles * 2)


class Greedy(Planted):
    """Offers a function that is not among its candidates."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield with_handle(right, address=STRANGER, members=(STRANGER,))


class NamedAfterStranger(Planted):
    changes: ClassVar[dict[str, Any]] = {"address": STRANGER}


class NamedAfterNothing(Planted):
    changes: ClassVar[dict[str, Any]] = {
        "address": base.PciAddress.parse("0000:ff:1f.7")
    }


class NamedAfterAnother(Planted):
    """Takes the name of a device that another plugin offers."""

    changes: ClassVar[dict[str, Any]] = {"address": GPU}


class IdentityOfAnother(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        identity = dataclasses.replace(right.identity, product=0x9999)
        yield dataclasses.replace(right, identity=identity)


class Masked(Planted):
    """Declares that another plugin has found its devices."""

    changes: ClassVar[dict[str, Any]] = {"plugin": "pci"}


class Nameless(Planted):
    """Uses a resource class that is invalid in Placement."""

    changes: ClassVar[dict[str, Any]] = {"resource_class": "an accelerator"}


class ClassUnknown(Planted):
    """Uses a resource class that is neither standard nor custom in Placement."""

    changes: ClassVar[dict[str, Any]] = {"resource_class": "ACCELERATOR_ACME"}


class TraitUnknown(Planted):
    """Uses a trait that is neither standard nor custom in Placement."""

    changes: ClassVar[dict[str, Any]] = {
        "traits": frozenset({"HW_NIC_SRIOV", "ACME_FAST"})
    }


# -- values with methods of the vendor's -----------------------------------------


class DerivedClass(Planted):
    changes: ClassVar[dict[str, Any]] = {"resource_class": Text("CUSTOM_ACCELERATOR_A")}


class DerivedNode(Planted):
    changes: ClassVar[dict[str, Any]] = {"numa_node": Number(0)}


class DerivedTraits(Planted):
    changes: ClassVar[dict[str, Any]] = {"traits": Traits({"CUSTOM_ACME"})}


class DerivedAddress(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield dataclasses.replace(right, address=Address(*right.address.parts))  # type: ignore[union-attr]


class DerivedIdentity(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        assert right.identity is not None
        identity = dataclasses.replace(right.identity, serial=Text("00-1b"))
        yield dataclasses.replace(right, identity=identity)


class DerivedWhole(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        parts = {
            each.name: getattr(right, each.name) for each in dataclasses.fields(right)
        }
        yield DerivedDevice(**parts)


class DerivedFault(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield with_handle(right, fault=Text("is too hot"))


class DerivedDetail(Planted):
    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(right.address, reason, Text("model 7"))


class ContextsFail(acme.OfThisContract):
    @property
    def contexts(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no sudo here")


class ReadOnce(acme.OfThisContract):
    """Has attributes that can be read while it is made, and once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._read: set[str] = set()

    def _once(self, name: str, value: Any) -> Any:
        if name in self._read:
            raise RuntimeError(f"{name} is read again")
        self._read.add(name)
        return value

    @property
    def contexts(self) -> Any:  # type: ignore[override]
        return self._once("contexts", ())

    @property
    def health_step(self) -> Any:  # type: ignore[override]
        return self._once("health_step", None)

    @property
    def is_fallback(self) -> Any:  # type: ignore[override]
        return self._once("is_fallback", False)


# -- other answers ---------------------------------------------------------------


class Junk(Planted):
    """Names no address at all."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield "a device"


class RejectsStranger(Planted):
    """Rejects a function that it was not given, and offers its first card."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        yield base.RejectedDevice(STRANGER, base.RejectReason.UNSUPPORTED)
        yield right


class SameNameTwice(Planted):
    """Offers its second card as another device of the first one."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        first, second = acme.Acme.discover(self, candidates)
        yield first
        yield dataclasses.replace(
            second, address=first.address, identity=first.identity
        )


class SameHandleTwice(Planted):
    """Offers its first card again, as its second device."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        first, second = acme.Acme.discover(self, candidates)
        yield first
        yield dataclasses.replace(second, handles=(*second.handles, *first.handles))


class NoHandlesOfCard(acme.Acme):
    """Describes a card after its PF, and forgets its VFs."""

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        usable = candidates.usable[0]
        yield dataclasses.replace(
            acme.device(self, usable),
            address=usable.parent.address,
            identity=usable.parent.identity,
            handles=(),
        )


class FirstOfCard(acme.Acme):
    """Offers the first VF of a card as the card, and leaves the others."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        usable = candidates.usable[0]
        yield dataclasses.replace(
            acme.device(self, usable),
            address=usable.parent.address,
            identity=usable.parent.identity,
        )


class CardIsText(NoHandlesOfCard):
    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        for found in super().discover(candidates):
            yield dataclasses.replace(found, address=str(found.address))


# -- a plugin without a bug ------------------------------------------------------


class AcmeReason(base.VendorReason):
    OLD_FIRMWARE = "its firmware is too old"


class OldFirmware(Planted):
    """Rejects its first card, for a reason of its own."""

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(right.address, reason, "12", AcmeReason.OLD_FIRMWARE)


class NeverForgets(Planted):
    changes: ClassVar[dict[str, Any]] = {"erasure": base.Erasure.NONE}


# -- plugins that fail as a whole ------------------------------------------------


class Nothing(acme.Acme):
    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        return None  # type: ignore[return-value]


class Endless(acme.Acme):
    """Polls its first card in a loop without end."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        return itertools.cycle(super().discover(candidates))


class Cancelled(acme.Acme):
    """Lets an exception pass that is no Exception."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        raise asyncio.CancelledError("firmware daemon")


class RaisesUnspeakable(acme.Acme):
    """Raises an exception that cannot be printed."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        raise Unspeakable


class ForgetsSuper(acme.Acme):
    """Does not call the constructor of PluginBase."""

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        self.conf = conf


class Renames(acme.Acme):
    """Gives itself a better name than that of its entry point."""

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        super().__init__("Acme Accelerators", conf, root)


class FallbackIsMissing(acme.Acme):
    is_fallback: ClassVar[bool] = None  # type: ignore[assignment]
