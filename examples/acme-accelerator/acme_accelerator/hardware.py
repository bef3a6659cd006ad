# SPDX-License-Identifier: Apache-2.0

"""F2 cards, as their driver shows them; independent of os_acc.

Every path is below a root directory, so that tests run on a simulated host.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import uuid
from collections.abc import Callable, Sequence

VENDOR = 0xACE0
PF_PRODUCT, VF_PRODUCT = 0x0F20, 0x0F21

_UUID_BYTES = 16
#: A bitstream has no more functions.
MOST_FUNCTIONS = 8
#: Bytes of one write to the node.
CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Card:
    """The state of a card.

    :ivar interface_id: canonical UUID of the bitstreams that the region takes.
    :ivar firmware: the version of its firmware.
    :ivar temperature: in degrees Celsius.
    """

    interface_id: str
    firmware: int
    temperature: int


def read_card(root: str, address: str) -> Card:
    """Read the state of the card with this PF.

    :raises OSError: the card is absent, or has no driver.
    :raises ValueError: an attribute is malformed.
    """
    return Card(
        interface_id=str(uuid.UUID(_attribute(root, address, "interface_id"))),
        firmware=int(_attribute(root, address, "firmware")),
        temperature=int(_attribute(root, address, "temperature")),
    )


def read_functions(root: str, address: str) -> tuple[str, ...]:
    """Read the UUIDs of the functions that run; empty: none does.

    :raises OSError: the card is absent, or has no driver.
    """
    found: list[str] = []
    with open(node(root, address), "rb") as device:
        for _ in range(MOST_FUNCTIONS):
            each = device.read(_UUID_BYTES)
            if len(each) < _UUID_BYTES or not any(each):
                break
            found.append(str(uuid.UUID(bytes=each)))
    return tuple(found)


def reached(functions: Sequence[str], vf: int) -> str:
    """Return the function that a VF reaches.

    The card connects its VFs with the functions in turn: with two functions VF 0 and
    VF 2 reach the first one, VF 1 and VF 3 the second one.

    :param functions: as :func:`read_functions` returns them; at least one.
    :param vf: the number of the VF, from 0.
    """
    return functions[vf % len(functions)]


def open_node(root: str, address: str) -> int:
    """Open the node of the card with this PF for programming.

    :raises OSError: see open(2); EBUSY: another process programs the card.
    """
    return os.open(node(root, address), os.O_WRONLY | os.O_CLOEXEC)


def write_functions(
    node_fd: int,
    functions: Sequence[str],
    data: bytes,
    seconds_left: Callable[[], float],
) -> None:
    """Program the region through its open node.

    :param functions: the UUIDs of the functions that the data implement.
    :param seconds_left: returns the time until the deadline.
    :raises TimeoutError: the deadline has passed; a part of the data may be written.
    :raises OSError: the card did not accept the data.
    """
    head = b"".join(uuid.UUID(each).bytes for each in functions)
    rest = memoryview(head + bytes(_UUID_BYTES) + data)
    while rest:
        if seconds_left() <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the deadline has passed")
        rest = rest[os.write(node_fd, rest[:CHUNK]) :]


def node(root: str, address: str) -> str:
    """Return the path of the node of the card with this PF."""
    return os.path.join(root, "dev", "acme", address)


def marker(root: str, address: str) -> str:
    """Return the path of the file that keeps ``acmed`` off a function."""
    return os.path.join(root, "run", "acme", "guests", address)


def _attribute(root: str, address: str, name: str) -> str:
    device = os.path.join(root, "sys", "bus", "pci", "devices", address)
    with open(os.path.join(device, f"acme_{name}"), encoding="ascii") as file:
        return file.read().strip()
