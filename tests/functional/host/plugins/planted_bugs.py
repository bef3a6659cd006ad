# SPDX-License-Identifier: Apache-2.0

"""Plugins with one bug each, as vendors write them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from oslo_config import cfg

from os_acc.plugins import base
from tests.unit import acme

HERE: Final = "tests.functional.host.plugins.planted_bugs"


class Planted(acme.Acme):
    """Describes its first card wrongly, and all others as it should."""

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
        """Yield the wrong devices; a test replaces it."""
        raise NotImplementedError


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


class FirstOfCard(acme.Acme):
    """Offers the first VF of a card as the card, and leaves the others."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        usable = candidates.usable[0]
        yield dataclasses.replace(
            acme.device(self, usable),
            address=usable.parent.address,
            identity=usable.parent.identity,
        )


class NamedAfterAnother(acme.Acme):
    """Reads the PF of its device from a wrong entry of ``matched``."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        pfs = [e.parent for e in candidates.matched if e.parent != e.function]
        for found in super().discover(candidates):
            yield dataclasses.replace(
                found, address=pfs[0].address, identity=pfs[0].identity
            )


class NoHandlesOfCard(FirstOfCard):
    """Describes a card after its PF, and forgets its VFs."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        for found in super().discover(candidates):
            yield dataclasses.replace(found, handles=())


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

    @property
    def always_reports_function_id(self) -> Any:  # type: ignore[override]
        return self._once("always_reports_function_id", True)


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


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


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


class RenamesLater(acme.Acme):
    """Keeps the name of the model that it has read as its own."""

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        self.name = "Acme E10"
        return super().discover(candidates)


class FallbackIsMissing(acme.Acme):
    is_fallback: ClassVar[bool] = None  # type: ignore[assignment]


class AcmeReason(base.VendorReason):
    OLD_FIRMWARE = "its firmware is too old"
