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

"""Checks and limits of a text, wherever it comes from."""

from __future__ import annotations

from typing import Final

_NOTE: Final = "... ({} more characters)"


def shortened(text: str, most: int) -> str:
    """Return the text, cut to so many characters where it has more.

    The number of characters that are left out follows the cut.
    """
    if len(text) <= most:
        return text
    # The longest note is that of the whole text: room for it is always enough.
    room = most - len(_NOTE.format(len(text)))
    return text[:room] + _NOTE.format(len(text) - room)


def encodable(text: str) -> str:
    """Return the text, with an escape for each character that cannot be written."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    """Whether it can be written: half a pair of surrogates is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
