# SPDX-License-Identifier: Apache-2.0

"""An incomplete error or reason of a plugin fails its step, and stops nothing else."""

from __future__ import annotations

import time
from unittest import mock

import pytest

from os_acc import exception, service
from os_acc.attach import plugin_steps
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.plugins.loader import Plugins
from tests.functional.host.plugins.planted_errors import HERE

CARDS = "0000:5e:00.0", "0000:e3:00.0"
#: The words of the reason of a plugin that raises its error in ``release``.
REASONS = {
    "Forgets": "'AcmeError' object has no attribute 'message'",
    "HasCode": "CodeError.message is 5, not a str",
    "SkipsBase": "'BusyError' object has no attribute 'address'",
    "IsSilent": "no text for this code",
}


@pytest.fixture
def make_host(make_bench, install_plugins):
    """Return a function that builds a host of two cards of a plugin."""

    def make(plugin: str):
        install_plugins(bad=f"{HERE}:{plugin}")
        return make_bench()

    return make


@pytest.mark.parametrize("plugin", REASONS)
def test_an_incomplete_error_of_a_release_quarantines_the_device_alone(
    make_host, monkeypatch, plugin
):
    host = make_host(plugin)
    host.plug(1, CARDS[0])
    with pytest.raises(exception.DevicesUnreleased) as caught:
        host.unplug(1)
    assert REASONS[plugin] in str(caught.value)
    assert "report it to its vendor" in str(caught.value)
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert REASONS[plugin] in lease.reason
    # The service starts again, and serves the other card.
    monkeypatch.setattr(service, "nodes", service.Nodes())
    service.initialize(config=host.config(), root=host.root)
    assert service.get().store.leases() == (lease,)
    host.restart()
    assert len(host.plug(2, CARDS[1])) == 1


class InProcess(Plugins):
    """Calls a plugin without a thread."""

    def __init__(self) -> None:
        super().__init__({}, (), {})

    def call(self, plugin, seconds, function, *args):
        return function(*args)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("hint", None, "OsAccError.hint is None, not a str"),
        ("message", "model \udcff", "OsAccError.message is .*, not plain Unicode text"),
        ("fault", "host", "OsAccError.fault is 'host', not a Fault"),
        ("retryable", 1, "OsAccError.retryable is 1, not a bool"),
        ("elsewhere", None, "OsAccError.elsewhere is None, not a bool"),
        ("reason", "too hot", "OsAccError.reason is 'too hot', not an ErrorReason"),
    ],
)
def test_an_error_with_an_attribute_of_another_type_is_not_raised(name, value, rule):
    error = exception.OsAccError("busy")
    setattr(error, name, value)
    failing = mock.Mock(side_effect=error)
    with pytest.raises(ValueError, match=rule):
        plugin_steps.call(InProcess(), None, float("inf"), failing)


def test_an_incomplete_error_of_a_preparation_undoes_the_plug(make_host):
    host = make_host("ForgetsInPrepare")
    with pytest.raises(exception.PluginFailed, match="has no attribute 'message'"):
        host.plug(1, CARDS[0])
    assert host.manager.store.leases() == ()


def test_an_incomplete_error_of_an_erasure_quarantines_the_device(make_host):
    host = make_host("ForgetsInErase")
    host.plug(1, CARDS[0])
    host.unplug(1)
    (lease,) = host.manager.store.leases()
    with pytest.raises(exception.PluginFailed):
        host.manager.life.eraser.advance(lease.uuid, time.monotonic() + 30)
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert "has no attribute 'message'" in lease.reason


def test_the_log_has_the_error_as_the_vendor_raised_it(make_host, caplog):
    host = make_host("ForgetsInPrepare")
    with pytest.raises(exception.PluginFailed):
        host.plug(1, CARDS[0])
    assert "raise AcmeError(5)" in caplog.text


def test_an_address_of_its_own_type_does_not_make_an_error_incomplete(make_host):
    host = make_host("IsUsed")
    host.plug(1, CARDS[0])
    with pytest.raises(exception.DevicesUnreleased, match="busy"):
        host.unplug(1)
    (lease,) = host.manager.store.leases()
    # The release is retried.
    assert lease.state is LeaseState.RELEASING


def test_a_reason_that_is_text_as_well_is_shown(make_host):
    rejected = make_host("RejectsWithText").rejected(CARDS[0])
    assert str(rejected) == "its firmware is too old"


def test_a_reason_without_a_hash_rejects_the_device_with_the_rule(make_host):
    host = make_host("RejectsWithoutHash")
    rejected = host.rejected(CARDS[0])
    assert rejected.reason is RejectReason.INVALID
    assert "the class of vendor_reason has an __eq__ of its own" in rejected.detail
    assert len(host.plug(1, CARDS[1])) == 1


def test_a_plugin_whose_contract_version_fails_is_set_aside(make_host):
    host = make_host("VersionFails")
    (aside,) = host.manager.host_info()["set_aside"]
    assert "no file VERSION" in aside["reason"]
    assert len(host.plug(1, *CARDS)) == 2


@pytest.mark.parametrize("name", ["ácme", "a" * 65])
def test_a_name_that_the_helper_does_not_record_is_refused(
    make_bench, install_plugins, name
):
    """Each plug of its device would fail."""
    install_plugins(**{name: "tests.unit.acme:Marks"})
    host = make_bench()
    (aside,) = host.manager.host_info()["set_aside"]
    assert aside["name"] == name
    assert "the name of its entry point" in aside["reason"]
    assert len(host.plug(1, *CARDS)) == 2
