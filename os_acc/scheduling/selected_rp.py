# SPDX-License-Identifier: Apache-2.0

"""Parse ``selected_rp``, the scheduler's selection as passed by Nova."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    AllocationEntries,
    Allocations,
    Selection,
    SingleProvider,
)

_SUFFIX = re.compile(f"({NUMBERED_SUFFIX})?")
_FORMS = (
    "pass {'uuid': <provider>}, one allocation request of Placement "
    "({'allocations': {...}, 'mappings': {...}}), or None"
)


def parse(selected_rp: object) -> Selection | None:
    """Parse ``selected_rp`` in one of its forms.

    * ``{"uuid": RP, ...}``: one provider; other keys are ignored;
    * ``{"allocations": {RP: {"resources": {RC: n}}}, "mappings": {S: [RP]}}``:
      one allocation request of Placement, ``mappings`` is optional;
    * None: prepare the recorded lease again.

    UUIDs are returned in canonical form, everything sorted.

    :raises InvalidAllocation: any other value.
    """
    if selected_rp is None:
        return None
    selected = _mapping("selected_rp", selected_rp, hint=_FORMS)
    if ("uuid" in selected) == ("allocations" in selected):
        raise _malformed(
            f"selected_rp is {exception.show(selected_rp)}: either 'uuid' or "
            "'allocations' is required",
            hint=_FORMS,
        )
    if "uuid" in selected:
        return SingleProvider(_uuid("selected_rp['uuid']", selected["uuid"]))
    entries = parse_allocations(selected["allocations"], "selected_rp['allocations']")
    if "mappings" not in selected:
        return Allocations(entries)
    providers = frozenset(provider for provider, _resources in entries)
    return Allocations(entries, _mappings(selected["mappings"], providers))


def _malformed(message: str, hint: str = "") -> exception.InvalidAllocation:
    return exception.InvalidAllocation(
        message, hint=hint, reason=exception.AllocationReason.MALFORMED
    )


def _mapping(where: str, value: object, hint: str = "") -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(
            f"{where} is {exception.show(value)}, not a mapping",
            hint=hint,
        )
    return value


def _uuid(where: str, value: object) -> str:
    uuid = canonical_uuid(value)
    if uuid is None:
        raise _malformed(
            f"{where} is {exception.show(value)}, not the UUID of a resource provider"
        )
    return uuid


def parse_allocations(value: object, where: str) -> AllocationEntries:
    """Return the allocations on each provider, sorted, with canonical UUIDs.

    :param value: ``{RP: {"resources": {RC: n}}}``; other keys are ignored.
    :param where: names the value in messages.
    :raises InvalidAllocation: the value has another form.
    """
    entries: dict[str, tuple[tuple[str, int], ...]] = {}
    for key, allocation in _mapping(where, value).items():
        provider = _uuid(f"a key of {where}", key)
        if provider in entries:
            raise _malformed(f"{where} has the provider {provider} twice")
        fields = _mapping(f"{where}[{provider!r}]", allocation)
        entries[provider] = _resources(
            f"{where}[{provider!r}]['resources']", fields.get("resources")
        )
    return tuple(sorted(entries.items()))


def _resources(where: str, value: object) -> tuple[tuple[str, int], ...]:
    resources = _mapping(where, value)
    if not resources:
        raise _malformed(f"{where} is empty")
    for name, amount in resources.items():
        if not isinstance(name, str) or not PLACEMENT_NAME.fullmatch(name):
            raise _malformed(
                f"{where} has {exception.show(name)}, which is not the name "
                "of a resource class"
            )
        if type(amount) is not int or not 1 <= amount <= MAX_AMOUNT:
            raise _malformed(
                f"{where}[{name!r}] is {exception.show(amount)}, "
                f"not an integer from 1 to {MAX_AMOUNT}"
            )
    return tuple(sorted(resources.items()))


def _mappings(
    value: object, allocated: frozenset[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    where = "selected_rp['mappings']"
    mappings: list[tuple[str, tuple[str, ...]]] = []
    for suffix, members in _mapping(where, value).items():
        if not isinstance(suffix, str) or not _SUFFIX.fullmatch(suffix):
            raise _malformed(
                f"{where} has {exception.show(suffix)}, which is not the "
                "suffix of a request group"
            )
        mappings.append(
            (suffix, _providers(f"{where}[{suffix!r}]", members, allocated))
        )
    return tuple(sorted(mappings))


def _providers(where: str, value: object, allocated: frozenset[str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _malformed(
            f"{where} is {exception.show(value)}, not a list of resource providers"
        )
    providers = [_uuid(f"an item of {where}", item) for item in value]
    if len(set(providers)) < len(providers):
        raise _malformed(f"{where} names a provider twice")
    for provider in providers:
        if provider not in allocated:
            raise _malformed(
                f"{where} names the provider {provider}, which is not in the "
                "allocations"
            )
    return tuple(sorted(providers))
