# SPDX-License-Identifier: Apache-2.0

"""Attributes of a vendor's driver, with the behaviour that a test gives them."""

import contextlib
import errno
from pathlib import Path

import pytest

from os_acc.testing import (
    AttributeSpec,
    FakeKernel,
    FunctionSpec,
    HostSpec,
    SimulatedFunction,
    SriovSpec,
)
from os_acc.testing.device_specs import keep
from tests.unit.testing.conftest import Attributes

PF, VF, SIBLING = "0000:5e:00.0", "0000:5e:02.0", "0000:5e:02.1"


def set_state(function: SimulatedFunction, text: str) -> None:
    """Do as a driver that accepts two words, and reports the number of its changes."""
    if text.strip() not in ("up", "down"):
        raise OSError(errno.EINVAL, "neither up nor down", function.address)
    keep(function, "acme/state", text)
    function.write("changes", str(int(function.read("changes")) + 1))


def set_profile(function: SimulatedFunction, text: str) -> None:
    """Do as a driver whose VFs share what the card can do."""
    keep(function, "acme/profile", text)
    for vf in function.vfs or functions_beside(function):
        if vf != function.address:
            function.write("acme/free", "0", vf)
    if text.strip() == "999":
        raise OSError(errno.ENOSPC, "no such profile", function.address)


def functions_beside(function: SimulatedFunction) -> tuple[str, ...]:
    assert function.physfn == PF
    return (VF, SIBLING)


CARD = FunctionSpec(
    PF,
    0x1D1D,
    1,
    0x120000,
    "acme",
    driver_attributes=(
        AttributeSpec("acme/state", "up", set_state),
        AttributeSpec("changes", "0", stays=True),
        AttributeSpec("acme/model", "A100"),
    ),
    sriov=SriovSpec(
        2,
        2,
        "acmevf",
        boot_vfs=2,
        vf_attributes=(
            AttributeSpec("acme/profile", "0", set_profile),
            AttributeSpec("acme/free", "4"),
        ),
        own_vf_attributes=((), (AttributeSpec("acme/profile", "7", set_profile),)),
    ),
)


@pytest.fixture
def attributes(tmp_path: Path) -> Attributes:
    return Attributes(FakeKernel.build(tmp_path, HostSpec((CARD,))))


def test_a_write_has_the_effect_that_the_test_describes(attributes):
    attributes.set(PF, "acme/state", "down\n")

    assert attributes.get(PF, "acme/state") == "down\n"
    assert attributes.get(PF, "changes") == "1\n"
    (write,) = attributes.kernel.writes()
    assert (write.text, write.outcome) == ("down\n", "done")


def test_a_refused_write_changes_nothing(attributes):
    with pytest.raises(OSError, match="neither up nor down") as refused:
        attributes.set(PF, "acme/state", "sideways")
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="no such profile"):
        attributes.set(VF, "acme/profile", "999")

    assert attributes.get(PF, "changes") == "0\n"
    assert attributes.get(VF, "acme/profile") == "0\n"
    assert attributes.get(SIBLING, "acme/free") == "4\n"


def test_a_write_to_a_vf_changes_its_sibling(attributes):
    attributes.set(VF, "acme/profile", "558")

    assert attributes.get(VF, "acme/profile") == "558\n"
    assert attributes.get(VF, "acme/free") == "4\n"
    assert attributes.get(SIBLING, "acme/free") == "0\n"


def test_an_attribute_without_behaviour_is_read_only(attributes):
    with contextlib.suppress(PermissionError):
        attributes.set(PF, "acme/model", "B200")
    assert attributes.get(PF, "acme/model") == "A100\n"


def test_a_vf_may_have_attributes_of_its_own(attributes):
    found = [attributes.get(each, "acme/profile") for each in (VF, SIBLING)]
    assert found == ["0\n", "7\n"]
    attributes.set(SIBLING, "acme/profile", "558")
    assert attributes.get(SIBLING, "acme/profile") == "558\n"
    assert attributes.get(VF, "acme/free") == "0\n"


def test_attributes_come_and_go_with_the_driver(attributes):
    attributes.set(VF, "acme/profile", "558")
    attributes.driver("acmevf", "unbind", VF)
    assert not Path(attributes.device(VF, "acme")).exists()

    attributes.driver("acmevf", "bind", VF)
    assert attributes.get(VF, "acme/profile") == "0\n"


def test_an_attribute_that_stays_keeps_its_text(attributes):
    attributes.set(PF, "acme/state", "down")
    attributes.driver("acme", "unbind", PF)
    assert attributes.get(PF, "changes") == "1\n"

    attributes.driver("acme", "bind", PF)
    assert attributes.get(PF, "changes") == "1\n"
    assert attributes.get(PF, "acme/state") == "up\n"


def test_a_fault_strikes_a_vendors_attribute(attributes):
    attributes.kernel.fail(PF, "acme/state", errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        attributes.set(PF, "acme/state", "down")
    assert attributes.get(PF, "acme/state") == "up\n"


def test_a_behaviour_is_a_function_of_a_module():
    with pytest.raises(ValueError, match="no function of a module"):
        AttributeSpec("acme/state", "up", lambda _function, _text: None)
