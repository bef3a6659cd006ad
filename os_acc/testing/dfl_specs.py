# SPDX-License-Identifier: Apache-2.0

"""Simulated cards on the kernel's DFL driver."""

from __future__ import annotations

import dataclasses
import uuid

#: The function in a port whose bitstream was not written completely.
NOTHING = "00000000-0000-0000-0000-000000000000"


@dataclasses.dataclass(frozen=True, slots=True)
class DflSpec:
    """An FPGA card with an FPGA Management Engine.

    :ivar functions: UUID of the function in each port after power-on.
    :ivar interface_id: its ``compat_id``, as UUID; '' shows none.
    :ivar reconfigurable: whether it has the partial reconfiguration feature.
    """

    functions: tuple[str, ...]
    interface_id: str = ""
    reconfigurable: bool = True


def payload(function_id: str, size: int = 4096) -> bytes:
    """Return the content after the header of a bitstream with a function.

    The simulated hardware reads which function that is from the first 16
    bytes.

    :param size: in bytes, at least 16.
    """
    begin = uuid.UUID(function_id).bytes
    pattern = bytes(range(251))
    rest = pattern * (size // len(pattern) + 1)
    return begin + rest[: size - len(begin)]


def function_of(payload: bytes) -> str:
    """Return the function that a payload implements."""
    begin = payload[:16]
    return str(uuid.UUID(bytes=begin)) if len(begin) == 16 else NOTHING
