# SPDX-License-Identifier: Apache-2.0

"""F2 cards, as their driver shows them; independent of os_acc.

Every path is below a root directory, so that tests run on a simulated host.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import uuid
from collections.abc import Callable

VENDOR = 0xACE0
PF_PRODUCT, VF_PRODUCT = 0x0F20, 0x0F21

_UUID_BYTES = 16
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


def read_function_id(root: str, address: str) -> str | None:
    """Read the UUID of the function that runs; None: none does.

    :raises OSError: the card is absent, or has no driver.
    """
    with open(node(root, address), "rb") as device:
        found = device.read(_UUID_BYTES)
    if len(found) < _UUID_BYTES or not any(found):
        return None
    return str(uuid.UUID(bytes=found))


def open_node(root: str, address: str) -> int:
    """Open the node of the card with this PF for programming.

    :raises OSError: see open(2); EBUSY: another process programs the card.
    """
    return os.open(node(root, address), os.O_WRONLY | os.O_CLOEXEC)


def write_function(
    node_fd: int, function_id: str, data: bytes, seconds_left: Callable[[], float]
) -> None:
    """Program the region through its open node.

    :param seconds_left: returns the time until the deadline.
    :raises TimeoutError: the deadline has passed; a part of the data may be written.
    :raises OSError: the card did not accept the data.
    """
    rest = memoryview(uuid.UUID(function_id).bytes + data)
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
