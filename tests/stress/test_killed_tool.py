# SPDX-License-Identifier: Apache-2.0

"""A tool of XRT's goes on to program a card after a kill of any of its callers.

It has the locks of the card for as long as it runs: no other process programs the
card meanwhile, and no consumer is given a region that was not read back.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from os_acc import exception
from os_acc.privsep import worker
from os_acc.testing import uuid_of
from tests import run_figures
from tests.functional.host.plugins.xrt.xrt_host import (
    CIPHER,
    OTHER_USER,
    USER,
    XrtHost,
    two_cards,
)
from tests.stress import processes
from tests.stress.processes import Child

FIRST, NEXT, OTHER = 1, 2, 3
TOOLS = ("xbmgmt", "xbutil")
#: Long enough for a machine that has other things to do.
_PATIENCE = 60.0


class Killed(enum.Enum):
    """The processes that are killed while the tool runs."""

    CLIENT = "the client"
    WORKER = "the helper's worker"
    BOTH = "both"


@pytest.fixture
def cards(place: str) -> Iterator[XrtHost]:
    cards = XrtHost(pathlib.Path(place), two_cards())
    with cards:
        cards.upload()
        cards.upload("cipher", CIPHER)
        processes.become_reaper()
        yield cards
        cards.let_go()
        processes.reap()
        processes.become_reaper(False)


def plug(cards: XrtHost, number: int, address: str, name: str) -> Callable[[], object]:
    """Return a function that starts a service, and plugs a card in it."""

    def run() -> bool:
        worker._LOCK_SECONDS = 0.02
        cards.restart()
        try:
            cards.provider(address)
        except LookupError:
            # It is not offered.
            return False
        try:
            cards.plug(number, address, function_name=name)
        except exception.OsAccError:
            return False
        return cards.plugged(number) == [address]

    return run


def caller_of_tool(cards: XrtHost, tool: str) -> int:
    """Return the worker that runs the tool, once the tool is at work."""
    deadline = time.monotonic() + _PATIENCE
    while f"{tool} hangs" not in cards.ran():
        assert time.monotonic() < deadline, cards.ran()
        time.sleep(0.01)
    path = os.fsencode(cards.tools / tool)
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if process.name.isdigit() and path in (process / "cmdline").read_bytes():
                stat = (process / "stat").read_text()
                return int(stat.rpartition(")")[2].split()[1])
    raise AssertionError(f"{tool} does not run")


def kill(who: Killed, client: Child, caller: int) -> None:
    if who is not Killed.WORKER:
        client.kill()
    if who is not Killed.CLIENT:
        os.kill(caller, signal.SIGKILL)
    ended = client.wait()
    assert ended.killed is (who is not Killed.WORKER)
    assert not ended.value, "it was given what nobody has read back"


def check_left_alone(cards: XrtHost, ran: list[str]) -> None:
    """Check that the next plugs leave this card alone, and get another."""
    assert processes.result(plug(cards, NEXT, USER, "cipher")) is False
    assert processes.result(plug(cards, FIRST, USER, "adder")) is False
    assert cards.ran() == ran
    assert processes.result(
        lambda: cards.restart().store.recorded_state().unverified_regions
    )
    assert processes.result(plug(cards, OTHER, OTHER_USER, "adder")) is True
    assert cards.ran()[: len(ran)] == ran


@pytest.mark.share(4)
@pytest.mark.parametrize("who", Killed)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_runs_on_has_its_card_alone(request, cards, tool, who):
    cards.behave(**{tool: "hangs"})
    client = Child(plug(cards, FIRST, USER, "adder"))
    kill(who, client, caller_of_tool(cards, tool))
    # The tool that runs already goes on as before; later ones work.
    cards.behave()
    check_left_alone(cards, cards.ran())

    (cards.xrt / "go").touch()
    processes.reap()
    before = cards.ran()

    def again() -> None:
        manager = cards.restart()
        with contextlib.suppress(exception.OsAccError):
            manager.unplug({"uuid": uuid_of(FIRST)})
        assert cards.plugged(FIRST) == []
        assert cards.drivers(USER) == ["xocl"]
        cards.plug(NEXT, USER, function_name="cipher")
        (lease,) = manager.store.leases(uuid_of(NEXT))
        assert lease.programming is not None
        assert lease.programming.function_id == CIPHER
        assert not manager.store.recorded_state().unverified_regions
        cards.unplug(NEXT)

    processes.result(again)
    worked = ["xbmgmt works", "xbutil works", "xocl taken over"]
    assert cards.ran()[len(before) :] == worked
    assert cards.hardware() == CIPHER
    run_figures.note(request.node, "kills while a tool programs", 1)
