# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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
