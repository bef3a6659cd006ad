# SPDX-License-Identifier: Apache-2.0

"""Reading from files that may end earlier than they say."""

from __future__ import annotations

from typing import BinaryIO

from os_acc import exception


def exactly(file: BinaryIO, count: int) -> bytes:
    """So many bytes, no less.

    :raises ImageInvalid: the file ends before.
    """
    found = b""
    while len(found) < count:
        piece = file.read(count - len(found))
        if not piece:
            raise exception.ImageInvalid(
                f"the file ends {count - len(found)} bytes too early"
            )
        found += piece
    return found
