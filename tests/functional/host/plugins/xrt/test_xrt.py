# SPDX-License-Identifier: Apache-2.0

"""AMD/Xilinx cards are offered, and programmed with xclbins."""

from __future__ import annotations

import dataclasses
import hashlib
import os

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, hosts, instance, uuid_of
from tests.expected_errors import raises
from tests.functional.host.plugins.xrt.xrt_host import (
    ADDER,
    CIPHER,
    INTERFACE,
    MANAGEMENT,
    OTHER_USER,
    USER,
    XrtHost,
)
from tests.unit.fpga import upload

BASE = "862c7020-a250-293e-3203-6f19956669e5"
WORKED = ["xbmgmt works", "xbutil works", "xocl taken over"]


def traits(cards: XrtHost) -> frozenset[str]:
    return cards.provider(USER).device.traits


def function_trait(xclbin: str) -> str:
    return f"CUSTOM_FPGA_XILINX_FUNCTION_{xclbin.upper().replace('-', '_')}"


def one_card(**changed: object) -> HostSpec:
    return HostSpec(hosts.alveo("0000:3b", **changed))  # type: ignore[arg-type]


def rebuilt(**changed: object) -> HostSpec:
    """Return a host with one card and a changed management function."""
    management, user = hosts.alveo("0000:3b")
    return HostSpec((dataclasses.replace(management, **changed), user))  # type: ignore[arg-type]


# -- offered devices ----------------------------------------------------------


def test_only_the_user_function_ever_reaches_a_guest(cards):
    """cyborg.md 5.1 item 10: the other function has access to the card's flash."""
    offered = {
        str(handle.address)
        for provider in cards.manager.providers()
        for handle in provider.device.handles
    }
    assert offered == {USER, OTHER_USER}
    assert cards.rejected(MANAGEMENT).reason is RejectReason.MANAGEMENT
    (entry,) = cards.plug(1, USER)
    assert entry["pci_id"] == USER
    assert cards.drivers(MANAGEMENT, USER) == ["xclmgmt", "vfio-pci"]


def test_a_card_that_no_driver_has_keeps_its_management_function(make_cards):
    functions = hosts.alveo("0000:3b")
    bare = (dataclasses.replace(each, driver="") for each in functions)
    cards = make_cards(HostSpec(tuple(bare)))
    assert cards.rejected(MANAGEMENT).reason is RejectReason.MANAGEMENT
    assert cards.provider(USER).device.plugin == "pci"


def test_a_group_with_the_management_function_in_it_goes_to_nobody(make_cards):
    management, user = hosts.alveo("0000:3b")
    user = dataclasses.replace(user, group_of=management.address)
    cards = make_cards(HostSpec((management, user)))
    assert cards.manager.providers() == ()
    cards.restart(device_spec=[f'{{"address": "{USER}"}}'])
    assert cards.manager.providers() == ()
    assert cards.rejected(USER).reason is RejectReason.NOT_ISOLATED


def test_a_card_says_what_it_takes_and_what_it_holds(cards):
    region = cards.provider(USER).device.region
    assert (str(region.card), region.number) == (MANAGEMENT, 1)
    assert (region.interface_id, region.function_id) == (INTERFACE, None)
    assert "CUSTOM_PROGRAMMABLE" in traits(cards)


def test_in_a_shell_of_two_stages_xclbins_are_for_the_second(make_cards):
    cards = make_cards(one_card(interfaces=(BASE, BASE, INTERFACE)))
    assert cards.provider(USER).device.region.interface_id == INTERFACE


@pytest.mark.parametrize(
    ("interfaces", "excerpt"),
    [
        ((), "interface_uuids say ''"),
        (("not an id",), "not"),
        ((BASE, INTERFACE, ADDER), BASE.replace("-", "")),
    ],
)
def test_a_card_that_says_something_else_is_not_offered(
    make_cards, interfaces, excerpt
):
    cards = make_cards(one_card(interfaces=interfaces))
    refused = cards.rejected(USER)
    assert refused.reason is RejectReason.NO_INTERFACE
    assert excerpt in refused.detail


@pytest.mark.parametrize(
    ("name", "text", "excerpt"),
    [
        ("ready", "0", "not ready"),
        ("dev_offline", "1", "offline"),
        ("mfg", "1", "factory"),
        ("recovery", "1", "recovery"),
    ],
)
def test_a_card_that_takes_no_xclbin_now_is_not_offered(
    make_cards, name, text, excerpt
):
    management, _user = hosts.alveo("0000:3b")
    shown = tuple(dict(management.shown, **{name: text}).items())
    cards = make_cards(rebuilt(shown=shown))
    assert excerpt in cards.rejected(USER).detail


def test_a_shell_without_metadata_is_told(make_cards):
    management, _user = hosts.alveo("0000:3b")
    shown = tuple(each for each in management.shown if each[0] != "interface_uuids")
    cards = make_cards(rebuilt(shown=shown))
    assert cards.rejected(USER).reason is RejectReason.NO_INTERFACE


def test_without_its_management_function_a_card_is_taken_as_it_is(make_cards):
    _management, user = hosts.alveo("0000:3b")
    cards = make_cards(HostSpec((user,)))
    before = cards.provider(USER)
    assert (before.device.plugin, before.device.region) == ("xrt", None)
    cards.upload()
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        cards.plug(1, USER, function_name="adder")
    cards.plug(1, USER)
    assert cards.provider(USER).uuid == before.uuid
    assert cards.ran() == []


# -- programming --------------------------------------------------------------


def test_an_xclbin_goes_to_the_user_partition_by_both_tools(cards):
    """cyborg.md 5.1 item 5: ``--user``, and an address with a dot in it."""
    cards.upload()
    cards.plug(1, USER, function_id=ADDER)
    assert cards.ran() == WORKED
    arguments = [run["arguments"] for run in cards.runs()[:2]]
    assert arguments == [
        ["program", "--device", MANAGEMENT, "--user"],
        ["program", "--device", USER, "--user"],
    ]
    assert cards.hardware() == ADDER
    assert cards.drivers(MANAGEMENT, USER) == ["xclmgmt", "vfio-pci"]
    (lease,) = cards.manager.store.leases(uuid_of(1))
    assert lease.programming.function_id == ADDER
    assert function_trait(ADDER) in traits(cards)


def test_the_tools_read_what_was_hashed_and_get_nothing_else(cards):
    cards.upload()
    cards.plug(1, USER, function_name="adder")
    content = (cards.images.path / "adder").read_bytes()
    for run in cards.runs()[:2]:
        assert run["digest"] == hashlib.sha512(content).hexdigest()
        assert run["environment"] == ["HOME", "LC_ALL", "PATH", "XILINX_XRT"]
        assert (int(run["capabilities"], 16), run["no_new_privs"]) == (0, "1")
        assert run["directory"] == "/"
        # The standard streams, the image, and the locks of the card.
        names = [os.path.basename(file).partition("[")[0] for file in run["files"]]
        assert sorted(names) == sorted(
            ["null", "pipe:", "memfd:image (deleted)", MANAGEMENT, USER]
        )


def test_a_newer_xrt_has_another_name_for_its_tool(cards):
    """https://xilinx.github.io/XRT/2025.2/html/_sources/xrt-smi.rst.txt"""
    cards.upload()
    cards.rename_tool("xbutil", "xrt-smi")
    cards.plug(1, USER, function_name="adder")
    assert cards.ran() == ["xbmgmt works", "xrt-smi works", "xocl taken over"]


def test_a_card_that_comes_back_holds_nothing_known(cards):
    """A guest may have requested any change of the card (mailbox.main.rst)."""
    cards.upload()
    for number in (1, 2):
        cards.plug(number, USER, function_name="adder")
        cards.unplug(number)
        assert function_trait(ADDER) not in traits(cards)
    assert cards.ran() == WORKED + WORKED


def test_a_reboot_takes_the_xclbin_and_the_lease_brings_it_back(cards):
    """The record of a card's contents is never trusted: cyborg.md 5.1 item 9."""
    cards.upload()
    first = cards.plug(1, USER, function_name="adder")
    cards.kernel.reboot()
    cards.restart()
    assert cards.manager.plug(instance(1), None, None) == first
    assert cards.ran() == WORKED + WORKED
    assert cards.drivers(MANAGEMENT, USER) == ["xclmgmt", "vfio-pci"]


def test_what_xocl_has_loaded_already_is_not_programmed(make_cards):
    management, user = hosts.alveo("0000:3b")
    shown = tuple(dict(user.shown, xclbinuuid=ADDER.upper()).items())
    cards = make_cards(HostSpec((management, dataclasses.replace(user, shown=shown))))
    assert function_trait(ADDER) in traits(cards)
    cards.upload()
    cards.plug(1, USER, function_name="adder")
    assert cards.ran() == []


def test_an_xclbin_for_another_shell_never_reaches_a_tool(cards):
    cards.upload(interface=BASE)
    with pytest.raises(exception.BitstreamError):
        cards.plug(1, USER, function_name="adder")
    assert cards.ran() == []


def test_what_is_no_xclbin_never_reaches_a_tool(cards):
    upload(cards, interface=INTERFACE)
    with pytest.raises(exception.BitstreamError):
        cards.plug(1, USER, function_name="gzip")
    assert cards.ran() == []


# -- failures -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviours", "excerpt"),
    [
        ({"xbutil": "refuses"}, "Operation not permitted"),
        ({"xbmgmt": "dies"}, "Downloading xclbin"),
        ({"xbmgmt": "babbles"}, "ERROR: bad"),
        ({"xbutil": "lies"}, "an unknown xclbin is loaded"),
    ],
)
@pytest.mark.share(3)
def test_a_tool_that_fails_is_told_in_its_own_words(cards, behaviours, excerpt):
    cards.upload()
    cards.upload("cipher", CIPHER)
    before = cards.kernel.snapshot()
    cards.behave(**behaviours)
    with pytest.raises(exception.ProgrammingFailed) as failure:
        cards.plug(1, USER, function_name="adder")
    assert excerpt in failure.value.message
    assert failure.value.message.isprintable()
    assert len(failure.value.message) < 2500
    assert cards.plugged(1) == []
    assert cards.kernel.snapshot() == before
    # The contents are unverified, so no guest gets the card without programming.
    with pytest.raises(exception.OsAccError):
        cards.plug(2, USER)
    cards.behave()
    cards.plug(3, USER, function_name="cipher")
    assert cards.hardware() == CIPHER


def test_a_tool_that_does_not_end_keeps_its_card_and_no_other(cards):
    cards.upload()
    cards.manager.providers()
    cards.behave(xbmgmt="hangs")
    with cards.short_timeout(), pytest.raises(exception.DeviceStuck):
        cards.plug(1, USER, function_name="adder")
    with cards.short_timeout(), pytest.raises(exception.OsAccError):
        cards.plug(2, USER, function_name="adder")
    assert cards.ran() == ["xbmgmt hangs"]
    cards.behave()
    cards.plug(2, OTHER_USER, function_name="adder")
    assert cards.plugged(2) == [OTHER_USER]


def test_without_its_tools_a_card_cannot_be_programmed(cards):
    cards.upload()
    cards.without_tool("xbutil")
    with raises(exception.StepReason.REFUSED) as failure:
        cards.plug(1, USER, function_name="adder")
    assert "xbutil" in failure.value.message
    assert "[os_acc_xrt] tools" in failure.value.hint
    assert cards.ran() == []


@pytest.mark.parametrize("name", [".", "xbutil"])
def test_what_others_may_change_is_not_run_as_root(cards, name):
    cards.upload()
    (cards.tools / name).chmod(0o777)
    with raises(exception.StepReason.REFUSED, match="EPERM"):
        cards.plug(1, USER, function_name="adder")
    assert cards.ran() == []


def test_who_uses_the_card_is_not_programmed_under(cards):
    cards.upload()
    cards.open_by_host("/dev/dri/card1")
    with pytest.raises(exception.DeviceInUse, match="inference"):
        cards.plug(1, USER, function_name="adder")
    assert cards.ran() == []
