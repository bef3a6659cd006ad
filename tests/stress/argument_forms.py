# SPDX-License-Identifier: Apache-2.0

"""The forms of arguments that privileged entry points accept."""

from __future__ import annotations

import string
from typing import Any

FIRST = frozenset(string.ascii_letters + string.digits + "_")
_LATER = FIRST | frozenset(".+: -")
_HEX = frozenset("0123456789abcdef")
#: The hexadecimal digits of each algorithm.
DIGITS = {
    **dict.fromkeys(("blake2b", "sha512", "sha3_512"), 128),
    **dict.fromkeys(("sha384", "sha3_384"), 96),
    **dict.fromkeys(("blake2s", "sha256", "sha3_256"), 64),
}


def is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def is_row(value: object, length: int) -> bool:
    return isinstance(value, tuple | list) and len(value) == length


def is_list(value: Any) -> bool:
    """Return whether a value has 1 to 1024 parts, as an argument may have."""
    return isinstance(value, tuple | list) and 0 < len(value) <= 1024


def is_place(value: Any) -> bool:
    limits = (2**32 - 1, 255, 31, 7)
    return is_row(value, 4) and all(map(is_number, value, (0,) * 4, limits))


def is_identity(value: Any) -> bool:
    return is_row(value, 5) and all(is_number(each, 0, 0xFFFF) for each in value)


def is_driver(value: object) -> bool:
    if type(value) is not str or len(value) > 64:
        return False
    if value == "":
        return True
    return value[0] in FIRST and set(value) <= _LATER and value[-1] != " "


def is_text(value: object) -> bool:
    return type(value) is str and len(value) <= 200 and value.isprintable()


def are_targets(value: Any, *names: int) -> bool:
    if not is_list(value):
        return False
    whole = all(
        any(is_row(target, 2 + count) for count in names)
        and is_place(target[0])
        and is_identity(target[1])
        and all(is_driver(name) for name in target[2:4])
        and all(is_text(serial) for serial in target[4:])
        for target in value
    )
    return whole and len({tuple(target[0]) for target in value}) == len(value)


def are_functions(value: Any) -> bool:
    """Return whether a call that takes no names of its functions accepts them."""
    return are_targets(value, 0, 3) and not any(any(each[2:]) for each in value)


def is_digest(value: Any) -> bool:
    if not is_row(value, 2) or not all(type(text) is str for text in value):
        return False
    algorithm, digest = value
    return set(digest) <= _HEX and DIGITS.get(algorithm) == len(digest)


def is_signature(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 4
        and all(type(text) is str and len(text) <= 2**14 for text in value)
    )


def is_uuid(value: object) -> bool:
    if type(value) is not str:
        return False
    parts = value.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and set(
        "".join(parts)
    ) <= _HEX


def is_call(group: object, epoch: object, milliseconds: object) -> bool:
    return (
        is_number(group, 0, 2**31 - 1)
        and is_number(epoch, 0, 2**63 - 1)
        and is_number(milliseconds, 1, 600_000)
    )


def is_sysfs_name(name: object) -> bool:
    if type(name) is not str or not 0 < len(name) <= 96:
        return False
    return name[0] in FIRST and set(name) <= FIRST | frozenset(".:+-")
