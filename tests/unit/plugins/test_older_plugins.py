# SPDX-License-Identifier: Apache-2.0

"""Plugins for an older contract, on which the additions of later ones have no claim.

Such a plugin cannot state what its contract has no words for, and it may use the names
that a later version has added for its own purposes.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

import pytest

from os_acc import plugins
from os_acc.objects.device import Erasure, RejectReason
from os_acc.plugins import base
from os_acc.plugins.dfl import DflPlugin
from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.fpga import CARD as FPGA
from tests.unit.fpga import GZIP, held, upload
from tests.unit.plugins.test_older_handles import Builds1x2, Builds1x3, Builds1x4
from tools import plugin_contract

HERE: Final = "tests.unit.plugins.test_older_plugins"
HANDLES: Final = "tests.unit.plugins.test_older_handles"
DRIVE: Final = "0000:d9:00.0"
CARD: Final = "0000:5e:00.0"
DRIVES: Final = HostSpec((hosts.nvme_disk("0000:d9", 1),))
FIRST: Final = min(plugin_contract.recorded())
NAME: Final = f"{plugin_contract.BASE}.PluginBase"


class NamesContexts(Builds1x2):
    contexts: ClassVar[Any] = {"default": "fast"}


class NamesHealthStep(Builds1x3):
    def health_step(self) -> None:
        """Take the next step of the card's self-test."""


class NamesOwnDrivers(Builds1x2):
    own_vfio_drivers: ClassVar[Any] = None


class NamesFunctionsOf(DflPlugin):
    contract_version: ClassVar[tuple[int, int]] = (1, 2)

    def functions_of(self) -> list[str]:  # type: ignore[override]
        """Return the names of the functions that the vendor sells."""
        return ["gzip"]


class NewerNamesContexts(Builds1x4):
    contexts: ClassVar[Any] = {"default": "fast"}


class NewerNamesHealthStep(Builds1x4):
    def health_step(self) -> None:
        """Take the next step of the card's self-test."""


class NewerNamesOwnDrivers(Builds1x4):
    own_vfio_drivers: ClassVar[Any] = None


OWN_NAMES: Final = ["NamesContexts", "NamesHealthStep", "NamesOwnDrivers"]


@pytest.fixture
def make_host(make_bench, install_plugins):
    """Return a function that builds a host with a plugin of this class."""

    def make(plugin: str, spec: HostSpec | None = None, **options: Any) -> TestHost:
        install_plugins(old=plugin)
        return make_bench(spec, **options)

    return make


@pytest.mark.parametrize("plugin", ["Builds1x2", "Builds1x3"])
def test_a_drive_of_an_older_plugin_is_offered_by_its_tag_alone(make_host, plugin):
    host = make_host(f"{HANDLES}:{plugin}", DRIVES)
    assert host.rejected(DRIVE).reason is RejectReason.NO_ERASE
    host.restart(device_spec=[json.dumps({"address": DRIVE, "allow_no_erase": True})])
    device = host.provider(DRIVE).device
    assert (device.plugin, device.erasure) == ("old", Erasure.NONE)
    host.plug(1, DRIVE)


def test_the_reset_that_a_newer_plugin_states_for_a_drive_is_trusted(make_host):
    host = make_host(f"{HANDLES}:Builds1x4", DRIVES)
    assert host.provider(DRIVE).device.erasure is Erasure.RESET


def test_a_card_of_an_older_plugin_that_a_reset_erases_needs_no_tag(make_host):
    host = make_host(f"{HANDLES}:Builds1x2")
    assert host.provider(CARD).device.erasure is Erasure.RESET


@pytest.mark.parametrize("plugin", OWN_NAMES)
def test_an_older_plugin_uses_the_names_of_newer_attributes_as_its_own(
    make_host, plugin
):
    host = make_host(f"{HERE}:{plugin}")
    assert host.manager.host_info()["set_aside"] == []
    assert host.provider(CARD).device.plugin == "old"
    loaded = host.manager.plugins
    assert (loaded.contexts(), dict(loaded.health_steps)) == ((), {})
    assert loaded.own_vfio_drivers["old"] == frozenset()


@pytest.mark.parametrize("plugin", [f"Newer{each}" for each in OWN_NAMES])
def test_a_plugin_for_the_newer_contract_is_held_to_their_types(make_host, plugin):
    (aside,) = make_host(f"{HERE}:{plugin}").manager.host_info()["set_aside"]
    assert aside["name"] == "old"


def test_an_older_plugin_uses_the_name_of_a_newer_method_as_its_own(
    make_fpgas, install_plugins
):
    install_plugins(dfl=f"{HERE}:NamesFunctionsOf")
    host = make_fpgas()
    upload(host)
    host.plug(1, FPGA, function_id=GZIP)
    assert held(host) == GZIP


def test_each_attribute_that_a_later_contract_adds_has_its_version():
    def attributes(version: tuple[int, int]) -> set[str]:
        return set(plugin_contract.recorded()[version][NAME]["attributes"])

    added = attributes(base.CONTRACT_VERSION) - attributes(FIRST)
    assert added == plugins.ADDED_IN.keys()
    for name, version in plugins.ADDED_IN.items():
        assert name in attributes(version)
        assert name not in attributes((version[0], version[1] - 1))
