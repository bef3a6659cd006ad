# SPDX-License-Identifier: Apache-2.0

"""A wrong call of a public function raises a typed error and changes nothing."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import os_acc
from os_acc import exception, requests, service
from os_acc.testing import TestHost, hosts, instance, request, uuid_of
from tests.random_values import shown
from tests.stress.file_changes import picture
from tests.stress.fuzzing import SHARES, told
from tests.stress.public_calls import (
    CLASS,
    FPGA,
    GPU,
    OWNER,
    PROFILE,
    Arguments,
    Calls,
    fingerprint,
    fits,
)

#: The number of calls of each; the others read the whole host.
CALLS = {"plug": 3_000, "unplug": 4_000, "rekey": 4_000, "requests_accelerators": 3_000}
OTHERS = 1_000
CHANGING = (
    *("plug", "unplug", "rekey"),
    *("requests.create", "requests.bind", "requests.unbind", "requests.delete"),
)
#: Every public function, by its name below ``os_acc``. The methods of a node are these
#: functions.
PUBLIC = (
    *(name for name in os_acc.__all__ if name != "Node"),
    *(f"requests.{name}" for name in requests.__all__),
)
#: These change a provider tree that they are given.
WRITING = ("update_provider_tree", "withdraw_providers")
BATCH = 250
#: Seconds, far beyond the time that a slow machine takes.
LONG = 600.0


class World:
    """One host; its first instance has an FPGA."""

    def __init__(self, place: str) -> None:
        self.bench = TestHost(Path(place), hosts.two_socket_host())
        self.untouched = self.bench.kernel.snapshot()
        self._state = self.bench.state_path
        catalogue = os.path.join(place, "profiles.yaml")
        self.bench.groups["os_acc_profiles"] = {"catalogue": catalogue}
        with open(catalogue, "w") as file:
            json.dump(
                [{"name": PROFILE, "groups": [{f"resources:{CLASS}": "1"}]}], file
            )
        self.config = self.bench.config()
        self._log = os.path.join(self.bench.root, ".kernel", "notes")

    def begin(self) -> None:
        """Bring the host to its state between calls."""
        self.bench.plug(1, FPGA)
        requests.create(PROFILE)
        self._before = self.bench.kernel.snapshot()
        self.mark()

    def mark(self) -> None:
        """Record the state that calls from here on must not change."""
        self._recorded, self._logged = self._record(), os.path.getsize(self._log)

    def is_unchanged(self) -> bool:
        """Return whether neither kernel nor store was written to."""
        return (self._recorded, self._logged) == (
            self._record(),
            os.path.getsize(self._log),
        )

    def check_all(self) -> None:
        """Check that the host is as it was, and has its instance."""
        assert self.bench.kernel.snapshot() == self._before
        assert list(os_acc.attached()) == [OWNER["uuid"]]

    def restore(self) -> None:
        """Undo the effect of valid calls."""
        for consumer in os_acc.attached():
            assert os_acc.unplug({"uuid": consumer}) == 1
        if made := [each["uuid"] for each in requests.find()]:
            requests.unbind(made)
            assert requests.delete(made) == len(made)
        assert self.bench.kernel.snapshot() == self.untouched
        self.begin()

    def _record(self) -> dict[str, Any]:
        look = picture(self._state)
        locks = os.path.join(self._state, "locks")
        return {path: each for path, each in look.items() if not path.startswith(locks)}


@pytest.fixture
def world(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(place)
    with world.bench.installed():
        checked = service.checked_config
        monkeypatch.setattr(
            service,
            "checked_config",
            lambda config: world.config if config is None else checked(config),
        )
        monkeypatch.setattr(service, "nodes", service.Nodes())
        os_acc.initialize()
        world.begin()
        yield world
        # Its thread would write to the store, in sight of other tests.
        assert service.get().retrier.stop(LONG)


def test_every_public_function_is_fuzzed(world):
    assert Calls(world.bench).names == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_wrong_call_is_told_so_and_changes_nothing(world, seed, share, fuzzed, name):
    calls = Calls(world.bench)
    numbers = share.select(range(CALLS.get(name, OTHERS)), SHARES)
    for done, number in enumerate(numbers):
        given = calls.arguments(name, seed, number)
        with told(seed, number, name + shown(given)):
            try_out(world, name, given)
            if done % BATCH == 0:
                world.check_all()
    world.check_all()
    world.restore()
    fuzzed("public calls", len(numbers))


def try_out(world: World, name: str, given: Arguments) -> None:
    before = fingerprint(given)
    answer, refusal = attempt(name, given)
    if refusal is not None:
        assert is_readable(refusal)
    if refusal is not None or name not in WRITING:
        assert fingerprint(given) == before
    if world.is_unchanged():
        return
    # The call was valid after all, or has changed the state of the request.
    assert name in CHANGING
    states = {each["state"] for each in requests.find()}
    assert answer or states & {"Unbound", "BindFailed"}
    world.restore()


def attempt(name: str, given: Arguments) -> tuple[Any, str | None]:
    """Return the result of a function, or its error."""
    function = operator.attrgetter(name)(os_acc)
    if not fits(name, given):
        with pytest.raises(TypeError, match="argument"):
            function(*given)
        return None, None
    try:
        return function(*given), None
    except exception.OsAccError as error:
        return None, str(error)


def is_readable(message: str) -> bool:
    """Return whether a message is short, and a log can have its characters."""
    message.encode()
    return 0 < len(message) < 2_000 and "\0" not in message


@pytest.mark.parametrize("key", ["name", "project_id"])
@pytest.mark.parametrize(
    "text",
    [
        *("é" * 500_000, "x" * 10**6, "\0", "a\0b", "\ud800", "\udcff", "\U0010ffff"),
        *("'; DROP TABLE leases; --", "\u202e", "\n\r\t\x1b[2J", " ", "e\u0301"),
    ],
    ids=lambda text: ascii(text[:8]),
)
def test_any_text_about_an_instance_is_kept_exactly(world, key, text):
    manager = world.bench.manager
    selected, specs = request(world.bench.provider(GPU))
    guest = {**instance(2), key: text}
    entries = os_acc.plug(guest, selected, specs)
    again = world.bench.restart()
    (lease,) = again.store.leases(uuid_of(2))
    kept = {"name": lease.guest.name, "project_id": lease.guest.project_id}
    assert kept[key] == text
    assert manager.attached(guest) == {uuid_of(2): entries}
    assert os_acc.unplug(guest) == 1
    world.check_all()
