# SPDX-License-Identifier: Apache-2.0

"""The public API is the recorded one: see the manual's page on compatibility."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import os_acc
from tools import public_api

RECORDED = json.loads(public_api.RECORD.read_text())
FOUND = public_api.describe()


def test_nothing_recorded_was_removed_or_changed():
    assert public_api.incompatible(RECORDED, FOUND) == []


def test_every_addition_is_recorded():
    added = [name for name in FOUND if name not in RECORDED]
    assert added == [], "run: python tools/public_api.py --record"


def test_the_record_has_each_kind_of_promise():
    assert {f"os_acc.{name}" for name in os_acc.__all__ if name != "Node"} <= set(FOUND)
    assert {
        "os_acc.Node.plug",
        "os_acc.requests.bind",
        "os_acc.numa.fit_to_host",
        "InstanceDict['uuid']",
        "AcceleratorEntry['pci_id']",
        "os_acc.exception.DeviceInUse",
        "[os_acc] device_spec",
        "os-acc device list --state",
        "nova.api.extra_spec_validators: os_acc",
        "accel:attach_target",
        "device_spec: num_vfs",
        "state: Bound",
    } <= set(FOUND)


def test_a_removed_name_and_a_changed_signature_are_incompatible():
    changed = FOUND | {"os_acc.plug": "()"}
    del changed["os-acc unplug"]
    assert len(public_api.incompatible(FOUND, changed)) == 2


def test_an_addition_is_compatible():
    assert public_api.incompatible(FOUND, FOUND | {"os_acc.more": "()"}) == []


# -- deprecation --------------------------------------------------------------------

MANUAL = public_api.TOP / "doc/source"
SAYS_NOTHING = {
    "reference/compatibility.rst": "Nothing is deprecated in this release.",
    "contributor/plugins.rst": "Nothing of contract 1 is deprecated",
}
#: The marks of a deprecation, each with the directory and the names of its files.
MARKS = {
    "code": (
        public_api.TOP / "os_acc",
        "*.py",
        r"\bDeprecationWarning\b|\bdeprecated_(?:for_removal|name|group|opts)=",
    ),
    "manual": (MANUAL, "*.rst", r"^ *\.\. deprecated::"),
    "release note": (
        public_api.TOP / "releasenotes/notes",
        "*.yaml",
        r"^deprecations:",
    ),
}
#: It reads options of Nova, with their earlier names.
OF_NOVA = public_api.TOP / "os_acc/cmd/environment.py"


def marked(kind: str) -> Iterator[Path]:
    """Yield the files that have a mark of a deprecation."""
    top, pattern, mark = MARKS[kind]
    for path in top.rglob(pattern):
        if path != OF_NOVA and re.search(mark, path.read_text("utf-8"), re.MULTILINE):
            yield path


def test_a_deprecation_is_in_the_code_the_manual_and_the_release_note():
    found = {kind: sorted(marked(kind)) for kind in MARKS}
    texts = {
        page: " ".join((MANUAL / page).read_text("utf-8").split())
        for page in SAYS_NOTHING
    }
    silent = all(SAYS_NOTHING[page] in text for page, text in texts.items())
    if silent:
        assert not any(found.values()), found
    else:
        assert all(found.values()), found
