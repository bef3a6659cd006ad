# SPDX-License-Identifier: Apache-2.0

"""A wrong value of any option is reported, and leaves the host as it is."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from os_acc import conf, exception, privsep, service
from os_acc.attach.manager import Manager
from os_acc.bitstreams import options
from os_acc.helper.client import Helper
from os_acc.host import numa
from os_acc.numa import network_options
from os_acc.objects import device_spec
from os_acc.objects.lease import Owner
from os_acc.placement import client as placement
from os_acc.profiles import options as profiles
from os_acc.testing import FakeKernel, helper, hosts, instance, request
from os_acc.testing.test_host import EVERYTHING
from tests.random_values import TEXTS, RandomValues, shown
from tests.stress import test_fuzz_images
from tests.stress.fuzzing import SHARES, told

GPU = "0000:17:00.0"
GROUP = conf.GROUP.name
#: Random values of each option of ours, for each way to set it.
VALUES = 60
SPECS = 4_000
_SPEC = '{"address": "0000:17:00.*", "traits": "HW_GPU", "prebound": false}'

#: Our options of each REST service, besides keystoneauth1's, and those for Nova.
OF_SERVICES = {
    placement.GROUP.name: [option.name for option in placement.OWN],
    profiles.GROUP.name: [option.name for option in profiles.OPTIONS],
    **{each.name: [] for each in (profiles.CYBORG, profiles.NOVA)},
    conf.DRIVER.name: [option.name for option in conf.DRIVER_OPTIONS],
    conf.SCHEDULER.name: [option.name for option in conf.SCHEDULER_OPTIONS],
}
LOADED = {
    placement.GROUP.name: placement.PlacementSettings.load,
    profiles.GROUP.name: profiles.ProfileSettings.load,
    conf.DRIVER.name: conf.DriverSettings.load,
    conf.SCHEDULER.name: conf.SchedulerSettings.load,
}

#: Nova's options for the NUMA affinity of networks, in files of their own.
OF_NETWORKS = {
    ("neutron", "physnets"): "[neutron]\nphysnets = {}\n",
    ("neutron_tunnel", "numa_nodes"): "[neutron_tunnel]\nnuma_nodes = {}\n",
    ("neutron_physnet_<name>", "numa_nodes"): (
        "[neutron]\nphysnets = a\n[neutron_physnet_a]\nnuma_nodes = {}\n"
    ),
}

#: The options of the plugins that come with os_acc.
OF_PLUGINS = (
    (options.XRT_GROUP, options.XRT_TOOLS.name),
    ("os_acc_nvme", "erase_methods"),
)

Set = Callable[[str, object], cfg.ConfigOpts]


def options() -> list[tuple[str, str]]:
    """Return group and name of every option."""
    return [
        (str(getattr(group, "name", group)), option.name)
        for group, those in conf.list_opts()
        for option in those
    ]


@pytest.fixture
def fake(place: str) -> Iterator[FakeKernel]:
    fake = FakeKernel.build(f"{place}/host", hosts.two_socket_host())
    with fake.installed():
        yield fake


def fresh(place: str, *arguments: str) -> cfg.ConfigOpts:
    """Return a complete configuration, with the additions of the arguments."""
    config = cfg.ConfigOpts()
    config(list(arguments), default_config_files=[], default_config_dirs=[])
    conf.register(config)
    for name, value in {
        "state_path": f"{place}/state",
        "device_spec": [EVERYTHING],
        "node_name": "host",
    }.items():
        config.set_default(name, value, group=GROUP)
    return config


def by_override(place: str, name: str, value: object) -> cfg.ConfigOpts:
    config = fresh(place)
    config.set_override(name, value, group=GROUP)
    return config


def by_file(place: str, name: str, value: object) -> cfg.ConfigOpts:
    path = Path(place, "os-acc.conf")
    text = value if isinstance(value, str) else shown(value)
    path.write_bytes(f"[{GROUP}]\n{name} = {text}\n".encode("utf-8", "surrogatepass"))
    return fresh(place, "--config-file", str(path))


#: Valid values of each option of ours, for small changes.
RIGHT: dict[str, Callable[[str], list[object]]] = {
    "device_spec": lambda _place: [[_SPEC], _SPEC],
    "enabled_plugins": lambda _place: [["pci"], "pci"],
    "state_path": lambda place: [f"{place}/state"],
    "node_name": lambda _place: ["host"],
    "helper_command": lambda _place: ["sudo privsep-helper"],
    "initialize_timeout": lambda _place: [60.0, "60", 1],
    "plug_timeout": lambda _place: [300.0, "300", 1],
    "unplug_timeout": lambda _place: [120.0, "1e9", 1],
    "write_timeout": lambda _place: [60.0, "600", 1],
    "helper_start_timeout": lambda _place: [60.0, "600", 1],
    "release_retry_interval": lambda _place: [60.0, "600", 1],
    "max_uncorrectable_errors": lambda _place: [0, "600", 1],
}
_NUMBERS = ("nan", "inf", "-inf", "1e300", "1e10", "9223372037", "0x10", "1_0", "+5")


def values(name: str, seed: str, place: str) -> Iterator[object]:
    """Yield each text that is known for trouble, then any values."""
    for text in TEXTS:
        yield f"{place}/{text}" if name == "state_path" else text
    for number in range(VALUES):
        yield _invent(name, RandomValues(f"{seed} {name} {number}"), place)


def _invent(name: str, rng: RandomValues, place: str) -> object:
    draw = rng.random.random()
    if draw < 0.3:
        return rng.value()
    if draw < 0.5:
        return rng.text()
    if name.endswith("_timeout") and draw < 0.7:
        return rng.pick((*_NUMBERS, *map(float, _NUMBERS[:6])))
    return rng.near(rng.pick(RIGHT[name](place)))


def is_harmless(name: str, value: object, place: str) -> bool:
    """Return whether root may try it: it may make a directory elsewhere."""
    if name != "state_path" or not isinstance(value, str):
        return True
    path = os.path.normpath(value)
    return not os.path.isabs(path) or path.startswith(f"{place}/")


def test_every_option_of_ours_is_fuzzed():
    assert {name for group, name in options() if group == GROUP} == set(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("way", [by_override, by_file])
def test_a_wrong_option_is_told_so(fake, place, seed, share, fuzzed, way, name):
    before = fake.snapshot()
    selected = share.select(list(enumerate(values(name, seed, place))), SHARES)
    for number, value in selected:
        if not is_harmless(name, value, place):
            continue
        with told(seed, number, f"{name} = {shown(value)}"):
            manager = start(fake, place, way, name, value)
            assert fake.writes() == []
            assert fake.snapshot() == before
            if manager is not None and name.endswith("_timeout"):
                use(manager, place)
                assert fake.snapshot() == before
                Path(fake.root, ".kernel/notes").unlink(missing_ok=True)
    fuzzed("values of options", len(selected))


def start(
    fake: FakeKernel,
    place: str,
    way: Callable[[str, str, object], cfg.ConfigOpts],
    name: str,
    value: object,
) -> Manager | None:
    try:
        config = way(place, name, value)
    except (
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
        cfg.Error,
    ):
        # oslo.config's own error.
        return None
    try:
        return service.build(config, fake.root, Owner.NOVA)
    except exception.OsAccError as error:
        assert_readable(error)
        return None


def assert_readable(error: exception.OsAccError) -> None:
    """Check that the message has only characters that a log can have."""
    assert str(error).encode()


def use(manager: Manager, place: str) -> None:
    """Check that plugs with any deadlines work, or fail and are rolled back."""
    root = manager.root
    sane = service.build(fresh(place), root, Owner.NOVA)
    (provider,) = (p for p in sane.providers() if str(p.device.address) == GPU)
    with contextlib.suppress(exception.OsAccError):
        manager.plug(instance(1), *request(provider))
    with contextlib.suppress(exception.OsAccError):
        manager.unplug(instance(1))
    sane.unplug(instance(1))


def test_a_wrong_device_specification_is_told_so(seed, share, fuzzed):
    numbers = share.select(range(SPECS), SHARES)
    familiar = ("address", "vendor_id", "num_vfs", "devname", "resource_class", "*")
    right = [
        [_SPEC, '{"vendor_id": "10de", "product_id": "0x2235", "address": "*:17:*.0"}'],
        ('[{"address": {"domain": ".*", "bus": "1[0-7]", "function": 1}}]',),
        ['{"devname": "eth0", "num_vfs": 4, "resource_class": "CUSTOM_X"}'],
    ]
    for number in numbers:
        rng = RandomValues(f"{seed} spec {number}", familiar)
        values: Any = rng.pick(right)
        for _ in range(1 + rng.random.randrange(3)):
            values = rng.near(values)
        with told(seed, number, f"device_spec.parse({shown(values)})"):
            try:
                device_spec.parse(values)
            except exception.InvalidConfiguration as error:
                assert_readable(error)
            # It warns of each that cannot be read.
            if isinstance(values, list | tuple) and len(values) < 1000:
                device_spec.nova_claims(values)
    fuzzed("device specifications", len(numbers))


# -- options of the helpers ------------------------------------------------------


#: Options that a helper itself reads, or its client once the helper has started.
HELPERS: dict[str, tuple[str, ...]] = {
    "user": ("no such user", "-1", "99999999999999"),
    "group": ("no such group", "\0"),
    "capabilities": ("CAP_NONSENSE", "64", "-1"),
    "thread_pool_size": ("0", "many", "\N{ARABIC-INDIC DIGIT FOUR}x"),
    "log_daemon_traceback": ("maybe",),
    "logger_name": ("a.b..c\ud800", "x" * 10**6),
    "helper_command": (),
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[privsep.Context]:
    """Return the context without a running helper, and no program on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    privsep.base.set_client_mode(True)
    yield privsep.base
    if privsep.base.channel is not None:
        privsep.base.stop()
    cfg.CONF.clear()
    for name in HELPERS:
        cfg.CONF.clear_override(name, group=privsep.base.cfg_section)


def test_every_option_of_the_helpers_is_fuzzed():
    others = {
        *(GROUP, *OF_SERVICES),
        *(group for group, _ in OF_PLUGINS),
        *(group for group, _ in test_fuzz_images.names()),
        *(group for group, _ in OF_NETWORKS),
    }
    assert {each for each in options() if each[0] not in others} == {
        (group, name) for group in conf.PRIVSEP_GROUPS for name in HELPERS
    }


@pytest.mark.parametrize("group", LOADED)
@pytest.mark.parametrize("text", TEXTS)
def test_a_wrong_option_of_a_service_is_told_or_taken(fake, place, fuzzed, group, text):
    """Test our own options; keystoneauth1's are read by the same code as Glance's."""
    for name in OF_SERVICES[group]:
        path = Path(place, f"{name}.conf")
        line = f"[{group}]\n{name} = {text}\n"
        path.write_bytes(line.encode("utf-8", "surrogatepass"))
        fuzzed("values of options", 1)
        try:
            config = fresh(place, "--config-file", str(path))
        except (cfg.Error, ValueError):
            # oslo.config's own answer.
            continue
        try:
            LOADED[group](config)
        except exception.InvalidConfiguration as error:
            assert_readable(error)
    assert fake.writes() == []


def test_every_option_of_networks_is_fuzzed():
    groups = {group for group, _ in OF_NETWORKS}
    assert {each for each in options() if each[0] in groups} == set(OF_NETWORKS)


@pytest.mark.parametrize("option", OF_NETWORKS, ids="{0[0]}".format)
def test_a_wrong_option_of_networks_is_told_or_taken(
    fake, place, seed, share, fuzzed, option
):
    host = numa.read_topology(fake.root)
    path = Path(place, "nova.conf")
    rng = RandomValues(f"{seed} networks")
    every = [*TEXTS, *(shown(rng.near("0,1")) for _ in range(VALUES))]
    texts = share.select(list(enumerate(every)), SHARES)
    for number, text in texts:
        file = OF_NETWORKS[option].format(text)
        path.write_bytes(file.encode("utf-8", "surrogatepass"))
        with told(seed, number, f"{option} = {text!r}"):
            try:
                config = fresh(place, "--config-file", str(path))
            except (cfg.Error, ValueError):
                # oslo.config's own answer.
                continue
            try:
                network_options.NetworkAffinity.load(config).on(host)
            except exception.InvalidConfiguration as error:
                assert_readable(error)
    fuzzed("values of options", len(texts))
    assert fake.writes() == []


@pytest.mark.share(5)
@pytest.mark.parametrize("option", OF_PLUGINS, ids=" ".join)
@pytest.mark.parametrize("text", TEXTS)
def test_a_wrong_option_of_a_plugin_is_told_or_taken(fake, place, fuzzed, option, text):
    group, name = option
    path = Path(place, "os-acc.conf")
    path.write_bytes(f"[{group}]\n{name} = {text}\n".encode("utf-8", "surrogatepass"))
    fuzzed("values of options", 1)
    try:
        config = fresh(place, "--config-file", str(path))
        manager = service.build(config, fake.root, Owner.NOVA)
    except (cfg.Error, ValueError):
        # oslo.config's own answer.
        return
    except exception.InvalidConfiguration as error:
        assert_readable(error)
        return
    assert manager.providers()
    assert fake.writes() == []


def start_helper(seconds: float) -> bool:
    """Return whether it starts; if not, check the error."""
    client = Helper(1.0)
    try:
        client.start(time.monotonic() + seconds, [privsep.base])
    except exception.HelperUnavailable as error:
        assert_readable(error)
        return False
    return True


def test_a_command_that_is_none_is_told_so(base, fuzzed):
    # An empty value stands for the installed command.
    texts = [text for text in TEXTS if text]
    for text in texts:
        cfg.CONF.set_override("helper_command", text, group=base.cfg_section)
        assert not start_helper(60.0)
    fuzzed("values of options", len(texts))


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in HELPERS.items() for value in values],
    ids=lambda value: ascii(value[:16]),
)
def test_a_helper_that_cannot_have_what_it_should_does_not_start(
    base, fake, tmp_path, fuzzed, name, value
):
    path = tmp_path / "helper.conf"
    text = f"[{base.cfg_section}]\n{name} = {value}\n"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    command = f"{helper.command(fake.root)} --config-file {shlex.quote(str(path))}"
    cfg.CONF.set_override("helper_command", command, group=base.cfg_section)
    if name.startswith("log"):
        with contextlib.suppress(UnicodeDecodeError):
            cfg.CONF(["--config-file", str(path)], project="os_acc")
    # The end of a helper that ends at once is sometimes missed: see privsep's PING.
    can_start = name == "logger_name" and "\ud800" not in value
    assert start_helper(60.0 if can_start else 5.0) == can_start
    assert fake.writes() == []
    fuzzed("values of options", 1)
