# SPDX-License-Identifier: Apache-2.0

"""Values that a plugin makes check their own types."""

import dataclasses

import pytest

from os_acc.plugins import base
from os_acc.testing import uuid_of

CARD = base.PciAddress(0, 0x5E, 0, 0)
IDENTITY = base.PciIdentity(0x10EE, 0x5000, 0x10EE, 1, 0)
HANDLE = base.AttachHandle(CARD, (CARD,), 7, 0)
DEVICE = base.Device(
    "acme", CARD, IDENTITY, "CUSTOM_ACME", frozenset({"CUSTOM_ACME"}), (HANDLE,), 0
)
REGION = base.Region(CARD, IDENTITY, 0, None, None)
REJECTED = base.RejectedDevice(CARD, base.RejectReason.UNSUPPORTED)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Traits(frozenset[str]):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "changes", "rule"),
    [
        (DEVICE, {"address": str(CARD)}, "address is '0000:5e:00.0', not a PciAddress"),
        (DEVICE, {"identity": "10ee:5000"}, "is '10ee:5000', not a PciIdentity"),
        (DEVICE, {"resource_class": Text("CUSTOM_A")}, "'CUSTOM_A', not a str"),
        (DEVICE, {"traits": ["CUSTOM_A"]}, r"is \['CUSTOM_A'\], not a frozenset"),
        (DEVICE, {"traits": frozenset({5})}, "a part of Device.traits is 5, not a str"),
        (DEVICE, {"traits": Traits({"CUSTOM_A"})}, "not a frozenset"),
        (DEVICE, {"handles": [HANDLE]}, "not a tuple"),
        (DEVICE, {"handles": (DEVICE,)}, "a part of Device.handles is Device"),
        (DEVICE, {"numa_node": "0\n"}, r"numa_node is '0\\n', not a number"),
        (DEVICE, {"numa_node": Number(0)}, "numa_node is 0, not a number"),
        (DEVICE, {"region": "region 0"}, "Device.region is 'region 0', not a Region"),
        (DEVICE, {"erasure": "reset"}, "Device.erasure is 'reset', not an Erasure"),
        (REGION, {"card": str(CARD)}, "'0000:5e:00.0', not a PciAddress"),
        (REGION, {"number": True}, "Region.number is True, not a number"),
        (REGION, {"function_id": "gzip"}, "'gzip', which is no canonical UUID"),
        (REGION, {"functions": {CARD: "gzip"}}, "not a tuple"),
        (REGION, {"functions": ((CARD, "gzip"),)}, "'gzip', which is no canonical"),
        (REGION, {"functions": ((CARD, uuid_of(1)),)}, "functions are not named"),
        (REJECTED, {"reason": "it is too hot"}, "'it is too hot', not a RejectReason"),
        (REJECTED, {"detail": OSError("no firmware")}, "OSError.*, not a str"),
        (REJECTED, {"vendor_reason": "old"}, "'old', not a VendorReason"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_made(value, changes, rule):
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(value, **changes)


def test_a_text_of_a_derived_type_is_copied():
    """A translation is one."""
    found = dataclasses.replace(REJECTED, detail=Text("model 7"))
    assert type(found.detail) is str
    assert found.detail == "model 7"
