# SPDX-License-Identifier: Apache-2.0

"""What a simulated card on the kernel's DFL driver is made of."""

from __future__ import annotations

import dataclasses
import uuid

#: What a card holds where a bitstream was not written to its end.
NOTHING = "00000000-0000-0000-0000-000000000000"


@dataclasses.dataclass(frozen=True, slots=True)
class DflSpec:
    """An FPGA card with an FPGA Management Engine.

    :ivar functions: what each port holds after power-on, as UUIDs.
    :ivar interface_id: its ``compat_id``, as UUID; '' shows none.
    :ivar reconfigurable: it has the partial reconfiguration feature.
    """

    functions: tuple[str, ...]
    interface_id: str = ""
    reconfigurable: bool = True


def payload(function_id: str, size: int = 4096) -> bytes:
    """What a bitstream that implements a function is after its header.

    The simulated hardware reads which function that is from the first 16
    bytes.

    :param size: in bytes, at least 16.
    """
    begin = uuid.UUID(function_id).bytes
    pattern = bytes(range(251))
    rest = pattern * (size // len(pattern) + 1)
    return begin + rest[: size - len(begin)]


def function_of(payload: bytes) -> str:
    """The function that a payload implements."""
    begin = payload[:16]
    return str(uuid.UUID(bytes=begin)) if len(begin) == 16 else NOTHING
