# SPDX-License-Identifier: Apache-2.0

"""A plug prefers near devices, reports their distance, and obeys the policies."""

from __future__ import annotations

import logging

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.objects.numa import NUMAPolicy
from os_acc.testing import TestHost, instance, request
from tests.expected_errors import raises
from tests.functional.host.attach.numa_host import (
    ALLOWED,
    LOCAL,
    REMOTE,
    SPEC,
    UNKNOWN,
    WORDS,
    plug,
    policy_from,
)


@pytest.fixture
def host(make_bench) -> TestHost:
    return make_bench(SPEC)


@pytest.mark.parametrize("policy", NUMAPolicy)
def test_a_policy_is_kept_before_anything_is_changed(host, policy):
    before = host.kernel.snapshot()
    specs = {"accel1:numa_policy": policy.value}
    for address, word in WORDS.items():
        if address in ALLOWED[policy]:
            (entry,) = plug(host, address, **specs)
            assert (entry["pci_id"], entry["numa_affinity"]) == (address, word)
            assert host.unplug(1) == 1
            continue
        with raises(exception.NoDeviceReason.NUMA_POLICY) as caught:
            plug(host, address, **specs)
        assert address in str(caught.value)
        assert policy.value in str(caught.value)
        assert caught.value.retryable
        assert host.kernel.snapshot() == before
        assert host.plugged(1) == []


def set_alias(host: TestHost, config: cfg.ConfigOpts, policy: str) -> None:
    """Configure an alias of Nova for the remote GPU."""
    config.register_opts([cfg.MultiStrOpt("alias", default=[])], group="pci")
    identity = host.provider(REMOTE).device.identity
    alias = (
        f'{{"name": "gpu", "vendor_id": "{identity.vendor:04x}", '
        f'"product_id": "{identity.product:04x}", "numa_policy": "{policy}"}}'
    )
    config.set_override("alias", [alias], group="pci")


@pytest.mark.parametrize("place", ["flavor", "image", "port", "device_spec", "alias"])
def test_every_place_that_says_a_policy_is_heard(host, place):
    mine, specs = instance(1) | {"numa_cells": [0]}, {}
    config = host.config()
    if place == "device_spec":
        tagged = '{"address": "*:*:*.*", "numa_policy": "preferred"}'
        config.set_override("device_spec", [tagged], group="os_acc")
    elif place == "alias":
        set_alias(host, config, "preferred")
    else:
        info, specs = policy_from(place, "preferred")
        mine |= info
    selected, flavor = request(host.provider(REMOTE))
    with raises(exception.NoDeviceReason.NUMA_POLICY, match="legacy"):
        host.manager.plug(instance(1) | {"numa_cells": [0]}, selected, flavor)
    manager = host.start(config)
    (entry,) = manager.plug(mine, selected, flavor | specs)
    assert entry["numa_affinity"] == "remote"


def test_novas_alias_is_heard_before_the_tag(host):
    config = host.config()
    set_alias(host, config, "required")
    tagged = '{"address": "*:*:*.*", "numa_policy": "preferred"}'
    config.set_override("device_spec", [tagged], group="os_acc")
    selected, flavor = request(host.provider(REMOTE))
    manager = host.start(config)
    with raises(exception.NoDeviceReason.NUMA_POLICY, match="required"):
        manager.plug(instance(1) | {"numa_cells": [0]}, selected, flavor)


def test_a_port_whose_group_nobody_has_is_told(host):
    selected, flavor = request(host.provider(LOCAL))
    mine = instance(1) | {"numa_cells": [0], "port_numa_policies": {"l": "required"}}
    before = host.kernel.snapshot()
    with pytest.raises(exception.InvalidInput, match="group 'l'"):
        host.manager.plug(mine, selected, flavor)
    assert host.kernel.snapshot() == before


def test_a_policy_that_is_none_is_told_of_also_by_a_plug_that_only_confirms(host):
    plug(host, LOCAL)
    with pytest.raises(exception.InvalidInput, match="nonsense"):
        plug(host, LOCAL, **{"hw:pci_numa_affinity_policy": "nonsense"})


def test_what_had_to_be_fetched_from_afar_is_logged_once(host, caplog):
    caplog.set_level(logging.WARNING)
    specs = {
        "accel1:numa_policy": "preferred",
        "accel2:numa_policy": "preferred",
        "accel3:numa_policy": "preferred",
    }
    first = plug(host, LOCAL, REMOTE, UNKNOWN, **specs)
    (warning,) = [each for each in caplog.messages if "are not local" in each]
    assert LOCAL not in warning
    assert f"{REMOTE} (remote, node 2)" in warning
    assert f"{UNKNOWN} (unknown" in warning
    assert plug(host, LOCAL, REMOTE, UNKNOWN, **specs) == first
    assert [each for each in caplog.messages if "are not local" in each] == [warning]


def test_another_policy_is_another_request(host):
    plug(host, LOCAL, **{"accel1:numa_policy": "required"})
    with raises(exception.ConflictReason.CONSUMER):
        plug(host, LOCAL, **{"accel1:numa_policy": "socket"})
