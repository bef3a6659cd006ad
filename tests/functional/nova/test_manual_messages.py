# SPDX-License-Identifier: Apache-2.0

"""The messages in the manual that an operator reads in Nova's log are those of Nova."""

from pathlib import Path

import nova
import pytest

import os_acc
from tests import manual_messages

_NOVA = Path(nova.__file__).parent
#: The modules whose messages the manual quotes.
_MODULES = ("exception.py", "pci/manager.py", "virt/driver.py")


@pytest.mark.parametrize("title", ["Messages of Nova", "A start of nova-compute"])
def test_each_message_in_the_manual_is_in_the_source(title):
    files = [
        *(_NOVA / module for module in _MODULES),
        *Path(os_acc.__file__).parent.rglob("*.py"),
    ]
    messages = manual_messages.quoted(title)
    assert messages
    assert manual_messages.missing(messages, manual_messages.in_source(files)) == []
