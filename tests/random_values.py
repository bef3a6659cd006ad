# SPDX-License-Identifier: Apache-2.0

"""Random invalid values, and valid values with one fault.

All values depend on a seed only: the same seed gives the same values.
"""

from __future__ import annotations

import collections
import decimal
import enum
import random
import reprlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")
_DEPTH = 100_000


class Number(int):
    """A number whose text is something else."""

    def __format__(self, _spec: str) -> str:
        return "../../../../outside/file"

    __str__ = __repr__ = lambda self: "../../../../outside/file"


class Text(str):
    """A text whose encoding is another text."""

    __slots__ = ()

    def encode(self, *_args: Any, **_kwargs: Any) -> bytes:
        return b"0000:00:00.0\n1234 1111"

    def __str__(self) -> str:
        return "../../../../outside/file"


class Row(tuple[Any, ...]):
    """A subclass of tuple, as a record is."""

    __slots__ = ()


class Array:
    """As an array of numpy: without a truth value, and with elementwise equality."""

    dtype = "int64"

    def __init__(self, *values: object) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> object:
        return self.values[index]

    def __index__(self) -> int:
        return 0

    __int__ = __index__

    def __eq__(self, _other: object) -> Any:
        return Array(True, True)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


class Mute:
    """A value whose repr() raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


#: A class with the name of a built-in one.
Pretender = type("dict", (), {})


class Answer(enum.IntEnum):
    YES = 1


def _nest(inner: object, wrap: Callable[[object], object]) -> object:
    for _ in range(_DEPTH):
        inner = wrap(inner)
    return inner


#: Built once, because of their size.
HUGE: tuple[object, ...] = (
    "x" * 4_000_000,
    "\ud800" * 1_000_000,
    b"x" * 4_000_000,
    [0] * 1_000_000,
    (0,) * 1_000_000,
    _nest([], lambda inner: [inner]),
    _nest((), lambda inner: (inner,)),
    _nest({}, lambda inner: {"uuid": inner}),
    10**5000,
)
NUMBERS: tuple[object, ...] = (
    *(0, 1, -1, 2, 7, 8, 31, 32, 255, 256, 0xFFFF, 0x10000, -(2**31)),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**62 + 1, 2**63, 2**64, 10**400),
    *(True, False, 0.0, -0.0, 1.0, 1e300, float("nan"), float("inf"), 1j),
    *(decimal.Decimal(1), Number(0), Answer.YES),
)
TEXTS: tuple[str, ...] = (
    *("", " ", "0", "1", "-1", "1e9", "0x10", "none", "None", "(null)", "\n", "\0"),
    *("..", ".", "/", "../..", "../../../etc/passwd", "/etc/passwd", "/dev/null"),
    *("driver/unbind", "../0000:00:1f.0/remove", "new_id", "-x", "~", "$HOME", "`id`"),
    *("%s%n", "{0}", "*", "?", "'; DROP TABLE leases; --", "vfio-pci", "nvme"),
    *("vfio-pci\n", "vfio-pci\0", "nvme\nremove", "0000:00:00.0\n1234 1111"),
    *("vfio‐pci", "ｖｆｉｏ-pci", "١", "²", "૪", "Ⅷ", "е", "\u202e", "\ufeff"),  # noqa: RUF001
    *("\ud800", "\udcff", "\U0010ffff", "e\u0301", "ß", "İ", "\x7f", "\x1b[2J", "\r"),
    *("x" * 64, "x" * 65, "x" * 4096, "i6300ESB timer", "a:b", "null", "[]", "{}"),
)
_OTHERS: tuple[object, ...] = (
    *(None, (), [], {}, set(), frozenset({1}), b"", b"0", b"\xff", bytearray(b"1")),
    *(object, object(), len, range(3), ..., NotImplemented, Mute(), Pretender()),
    *(Array(), Array(0), Array(0, 0, 0, 0), collections.deque([1]), uuid.UUID(int=1)),
    *(collections.UserDict(uuid="1"), memoryview(b"1"), Text("nvme"), Row((0, 0))),
)


class RandomValues:
    """The values of a seed.

    :param familiar: texts that are meaningful at the tested places.
    """

    def __init__(self, seed: str, familiar: Sequence[str] = ()) -> None:
        self.random = random.Random(seed)
        self._texts = (*TEXTS, *familiar * 3)

    def pick(self, values: Sequence[_T]) -> _T:
        return values[int(self.random.random() * len(values))]

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def text(self) -> str:
        return self.pick(self._texts)

    def value(self, depth: int = 3) -> object:
        """Return any value."""
        draw = self.random.random()
        if draw < 0.002:
            return self.pick(HUGE)
        if draw < 0.3:
            return self.pick(NUMBERS)
        if draw < 0.6:
            return self.text()
        if draw < 0.75 or not depth:
            return self.pick(_OTHERS)
        values = [self.value(depth - 1) for _ in range(self.random.randrange(6))]
        if draw < 0.95:
            return values if draw < 0.85 else tuple(values)
        return {self.text(): value for value in values}

    def near(self, value: object) -> object:
        """Return the value with one change, at some depth."""
        if isinstance(value, tuple | list) and value and self.happens(0.8):
            items = list(value)
            index = self.random.randrange(len(items))
            items[index] = self.near(items[index])
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict) and value and self.happens(0.75):
            key = self.pick(list(value))
            return {**value, key: self.near(value[key])}
        if self.happens(0.25):
            return self.value()
        return self._changed(value)

    def _changed(self, value: object) -> object:
        if isinstance(value, bool):
            return self.pick((int(value), None, str(value), not value))
        if isinstance(value, int):
            return self._number_near(value)
        if isinstance(value, str):
            return self._text_near(value)
        if isinstance(value, tuple | list):
            return self._row_near(value)
        if isinstance(value, Mapping):
            return self._mapping_near(value)
        return self.value()

    def _number_near(self, value: int) -> object:
        if value.bit_length() > 256:
            # Some of the following changes fail for such a number.
            return ~value
        change: Sequence[Callable[[], object]] = (
            lambda: value + self.pick((1, -1, 8, 256, 2**16, 2**31, 2**32, 2**64)),
            lambda: ~value,
            lambda: float(value),
            lambda: Number(value),
            lambda: str(value),
            lambda: str(value).encode(),
            lambda: bool(value),
            lambda: Array(value),
            lambda: [value],
        )
        return self.pick(change)()

    def _text_near(self, value: str) -> object:
        at = self.random.randrange(len(value) + 1)
        change: Sequence[Callable[[], object]] = (
            lambda: value[:at] + self.text() + value[at:],
            lambda: value[:at] + value[at + 1 :],
            lambda: value + self.pick(("\n", "\0", " ", "/", "/..", "\n0000:00:00.0")),
            lambda: self.pick(("../", "/", " ", "-", "\ufeff")) + value,
            lambda: value.replace("-", "‐").replace("1", "١"),  # noqa: RUF001
            lambda: value.upper(),
            lambda: value * 100,
            lambda: Text(value),
            lambda: value.encode("utf-8", "surrogatepass"),
            lambda: [value],
        )
        return self.pick(change)()

    def _row_near(self, value: Sequence[object]) -> object:
        items = list(value)
        at = self.random.randrange(len(items) + 1)
        change: Sequence[Callable[[], object]] = (
            lambda: (*items[:at], self.value(), *items[at:]),
            lambda: (*items[:at], *items[at + 1 :]),
            lambda: (*items[:at], *items[at : at + 1], *items[at:]),
            lambda: tuple(reversed(items)),
            lambda: items,
            lambda: Row(items),
            lambda: (tuple(items),),
            lambda: dict(enumerate(items)),
            lambda: Array(*items),
            lambda: iter(items),
            lambda: tuple(items * 50),
        )
        return self.pick(change)()

    def _mapping_near(self, value: Mapping[Any, Any]) -> object:
        items = dict(value)
        key = self.pick([*items, ""])
        change: Sequence[Callable[[], object]] = (
            lambda: {each: items[each] for each in items if each != key},
            lambda: {**items, self.text(): self.value()},
            lambda: {**items, self.pick((1, None, b"uuid", (), 1.5)): "1"},
            lambda: {**items, self._text_near(str(key)).__str__(): items.get(key)},
            lambda: list(items.items()),
            lambda: collections.UserDict(items),
            lambda: {"uuid": items},
        )
        return self.pick(change)()


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxtuple = self.maxlist = self.maxdict = 12

    def repr1(self, x: object, level: int) -> str:
        if type(x).__module__ == "builtins":
            return super().repr1(x, level)
        return self.repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        return hex(x) if x.bit_length() > 256 else super().repr_int(x, level)


def shown(values: object) -> str:
    """Return the values as text, as far as they have one."""
    try:
        return _Shown().repr(values)[:4000]
    except Exception as error:  # noqa: BLE001 - some of it is made to raise
        return f"(what cannot be shown: {type(error).__name__})"
