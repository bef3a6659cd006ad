# SPDX-License-Identifier: Apache-2.0

"""Checks of a vendor's plugin against the rules of the plugin contract.

The checks need no test framework. A vendor's tests run each on a host of its own::

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
    def test_conforms(check: conformance.Check, tmp_path: Path) -> None:
        with TestHost(tmp_path, HostSpec((CARD,)), enabled_plugins=["acme"]) as host:
            check(host, "acme")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from os_acc.objects.device import Provider
from os_acc.testing.test_host import TestHost

#: Takes a host on which the service has not started, and the name of a plugin.
Check = Callable[[TestHost, str], None]
_INSTANCE: Final = 1


class RuleBroken(AssertionError):
    """The plugin breaks a rule of the contract; correct the plugin."""


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise RuleBroken(rule)


def _offered(host: TestHost, plugin: str) -> list[Provider]:
    found = [each for each in host.manager.providers() if each.device.plugin == plugin]
    _require(bool(found), f"plugin {plugin} offers a device of the host")
    return found


def discovery_is_stable(host: TestHost, plugin: str) -> None:
    """Discover twice, with equal devices and names.

    :raises RuleBroken: no device is offered, or two scans differ.
    """
    first = _offered(host, plugin)
    _require(_offered(host, plugin) == first, "two scans find equal devices")


def discovery_only_reads(host: TestHost, plugin: str) -> None:
    """Discover without a write to the kernel, once the service has started.

    :raises RuleBroken: no device is offered, or a scan changed the host.
    """
    _offered(host, plugin)
    before, writes = host.kernel.snapshot(), len(host.kernel.writes())
    _offered(host, plugin)
    unchanged = host.kernel.snapshot() == before and not host.kernel.writes(writes)
    _require(unchanged, "discover() writes nothing")


def names_survive_restart(host: TestHost, plugin: str) -> None:
    """Discover with the same providers after the service starts again.

    :raises RuleBroken: no device is offered, or a provider has another name.
    """
    before = [(each.uuid, each.name) for each in _offered(host, plugin)]
    host.restart()
    after = [(each.uuid, each.name) for each in _offered(host, plugin)]
    _require(after == before, "providers have the same names after a restart")


def unplug_restores_the_host(host: TestHost, plugin: str) -> None:
    """Plug and unplug each device; the functions are then as before.

    :raises RuleBroken: no device is offered, or a function is left changed.
    """
    for provider in _offered(host, plugin):
        before = host.kernel.snapshot()
        address = str(provider.device.handles[0].address)
        host.plug(_INSTANCE, address)
        host.unplug(_INSTANCE)
        restored = host.kernel.snapshot() == before
        _require(restored, f"{address} is as before, once unplugged")


CHECKS: Final[tuple[Check, ...]] = (
    discovery_is_stable,
    discovery_only_reads,
    names_survive_restart,
    unplug_restores_the_host,
)


def name_of(check: Check) -> str:
    """Return the name of a check, for reports and for the ids of tests."""
    return getattr(check, "__name__", repr(check))
