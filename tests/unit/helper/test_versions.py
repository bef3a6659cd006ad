# SPDX-License-Identifier: Apache-2.0

"""A service whose helper is of another version: os_acc was upgraded while it ran."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.helper import connection
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost, helper, hosts, instance, request

GPU = "0000:17:00.0"


@pytest.fixture
def host(tmp_path: pathlib.Path) -> Iterator[TestHost]:
    devices = [{"address": f"0000:17:00.{number}"} for number in (0, 1)]
    spec = hosts.two_socket_host()
    with TestHost(tmp_path, spec, device_spec=[json.dumps(devices)]).installed() as it:
        yield it


@pytest.fixture
def manager(host: TestHost) -> Iterator[Manager]:
    with helper.privileged_here():
        yield host.start_with_helpers(host.write_config())
        for context in helper.CONTEXTS:
            context.stop()
    cfg.CONF.clear()


@contextlib.contextmanager
def other_version(difference: str, name: str) -> Iterator[None]:
    """Make the calls of an entry point those of another version."""
    call = connection._call

    def differing(entrypoint: Callable[..., Any], args: tuple[object, ...]) -> Any:
        kind, path, arguments, keywords = call(entrypoint, args)
        module, _, called = str(path).rpartition(".")
        if called != name:
            return (kind, path, arguments, keywords)
        if difference == "more arguments":
            return (kind, path, (*args, "new", "newer", "newest"), keywords)
        if difference == "a new module":
            module = "os_acc.privsep.newer"
        return (kind, f"{module}.newer", arguments, keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_call", differing)
        yield


def plug(manager: Manager) -> list[str]:
    selected, specs = request(
        next(each for each in manager.providers() if str(each.device.address) == GPU)
    )
    entries = manager.plug(instance(1), selected, specs)
    return [entry["pci_id"] for entry in entries]


@pytest.mark.parametrize(
    "difference", ["a renamed entry point", "more arguments", "a new module"]
)
def test_a_call_of_another_version_changes_nothing_and_names_the_remedy(
    host, manager, difference
):
    before = host.kernel.snapshot()
    with (
        other_version(difference, "take"),
        pytest.raises(exception.HelperLost) as caught,
    ):
        plug(manager)
    assert "restart the service" in caught.value.hint
    assert host.kernel.snapshot() == before
    assert plug(manager) == [GPU]
    with (
        other_version(difference, "give_back"),
        pytest.raises(exception.DevicesUnreleased, match="restart the service"),
    ):
        manager.unplug(instance(1))
    # Not quarantined: the restarted service releases it.
    assert [each.state for each in manager.store.leases()] == [LeaseState.RELEASING]
    assert host.start_with_helpers(host.write_config()).store.leases() == ()
    assert host.kernel.snapshot() == before
