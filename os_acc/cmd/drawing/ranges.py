# SPDX-License-Identifier: Apache-2.0

"""Many addresses and numbers in few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from os_acc.objects.pci import PciAddress


def addresses(
    some: Iterable[PciAddress], neighbours: Sequence[PciAddress] | None = None
) -> str:
    """Addresses as ranges, such as ``0000:3b:02.0-03.7, 04.1``.

    :param neighbours: a range leaves out none of these that is between its ends;
        default: there are no others.
    """
    wanted = set(some)
    order = sorted(wanted) if neighbours is None else neighbours
    parts = []
    before = None
    for first, last in _runs([each in wanted for each in order]):
        text = _short(order[first], before)
        if last > first:
            text += f"-{_short(order[last], order[first])}"
        parts.append(text)
        before = order[last]
    return ", ".join(parts)


def numbers(some: Iterable[int]) -> str:
    """Numbers as ranges, such as ``0-7,16``."""
    order = sorted(set(some))
    parts: list[list[int]] = []
    for number in order:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last place of each row of truths."""
    first = None
    for place, flag in enumerate((*flags, False)):
        if flag and first is None:
            first = place
        elif not flag and first is not None:
            yield first, place - 1
            first = None


def _short(address: PciAddress, before: PciAddress | None) -> str:
    """Without domain and bus where they are those of the one before."""
    if before is not None and address.parts[:2] == before.parts[:2]:
        return f"{address.slot:02x}.{address.function:x}"
    return str(address)
