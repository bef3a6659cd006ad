# SPDX-License-Identifier: Apache-2.0

"""Run a share of the tests, or of the items of one long test.

``--share=NUMBER`` divides each kind of long test by the divisor of its kind. As
many consecutive numbers as the divisor select everything, each item once. The
same number selects the same items, on any machine and in any order.

:data:`DIVISORS` divides the tests of whole folders. The mark
``@pytest.mark.share(2)`` divides single tests, and ``share(1)`` selects a test
always. The place of a test among the shares follows from its node id, so that
adding, removing or reordering other tests moves nothing; ``share(10, place=3)``
sets the place, if a few tests of a kind have to be spread evenly. ``--divisor=10``
divides the tests that neither divides, in a lane that runs few of them. A test that
divides its own items calls :meth:`Share.select`. Without the option all tests
and all items are selected.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")
#: The divisors of tests without a mark, by the start of the node id.
DIVISORS = {
    "tests/functional/host/": 4,
    # No multiple of three: consecutive numbers boot three kernels in turn.
    "tests/functional/kernel/": 23,
    # Each starts Nova's services: five seconds.
    "tests/functional/nova/test_driver": 24,
    "tests/functional/nova/": 8,
    "tests/functional/openstack/": 12,
    "tests/stress/test_fault_": 30,
    # Most of them wait for a deadline.
    "tests/stress/test_process_": 5,
}

_OPTION, _DIVISOR = "--share", "--divisor"
_SELECTED = pytest.StashKey[tuple[int, int]]()
_KEY = "share"


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The share of a run.

    :ivar number: the number of the share, or None in a full run.
    """

    number: int | None = None

    def select(self, items: Sequence[_T], divisor: int) -> Sequence[_T]:
        """Return every ``divisor``-th item, and all items in a full run.

        :param items: in the same order in each run; sort them if it varies.
        """
        if self.number is None:
            return items
        return items[self.number % divisor :: divisor]

    def reduce(self, count: int, divisor: int) -> int:
        """Divide the number of repetitions, for a test without items."""
        return count if self.number is None else count // divisor

    def has(self, place: int, divisor: int) -> bool:
        """Return whether an item at a fixed place belongs to this share."""
        return self.number is None or (place - self.number) % divisor == 0


def of(config: pytest.Config) -> Share:
    """Return the share that this run was started with."""
    return Share(config.getoption(_OPTION))


def place_of(node_id: str) -> int:
    """Return the place of a test among the shares; the same in every run."""
    return int(hashlib.sha256(node_id.encode()).hexdigest(), 16)


def belongs(item: pytest.Item, share: Share) -> bool:
    """Return whether a test belongs to a share."""
    return share.has(*place_and_divisor(item))


def place_and_divisor(item: pytest.Item) -> tuple[int, int]:
    """Return the place of a test among the shares, and the divisor of its kind."""
    if mark := item.get_closest_marker("share"):
        divisor, place = _read(*mark.args, **mark.kwargs)
    else:
        divisor, place = _divisor_of(item.nodeid), None
    # A short test runs no more often than a long one.
    divisor = max(divisor, item.config.getoption(_DIVISOR))
    return place_of(item.nodeid) if place is None else place, divisor


def _read(divisor: int, place: int | None = None) -> tuple[int, int | None]:
    return divisor, place


def _divisor_of(node_id: str) -> int:
    for beginning, divisor in DIVISORS.items():
        if node_id.startswith(beginning):
            return divisor
    return 1


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> Share:
    """Return the share of this run, for a test that divides its own items."""
    return of(pytestconfig)


# -- pytest's hooks --------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption(
        _OPTION,
        type=int,
        metavar="NUMBER",
        help="run the share of each long kind of test that has this number",
    )
    parser.addoption(
        _DIVISOR,
        type=int,
        default=1,
        help="run a share of all tests: one of so many",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers", "share(divisor, place=None): select the test in one of the shares"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect the tests of the other shares."""
    share = of(config)
    if share.number is None:
        return
    chosen = [item for item in items if belongs(item, share)]
    config.stash[_SELECTED] = len(chosen), len(items)
    config.hook.pytest_deselected(
        items=[item for item in items if not belongs(item, share)]
    )
    items[:] = chosen


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the selection from a worker of xdist to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = session.config.stash.get(_SELECTED, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store a worker's report; all workers have collected the same tests."""
    if reported := getattr(node, "workeroutput", {}).get(_KEY):
        node.config.stash[_SELECTED] = reported


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the share and its number of tests."""
    share = of(config)
    if share.number is None:
        return
    chosen, known = config.stash.get(_SELECTED, (0, 0))
    terminalreporter.write_line(f"share {share.number}: {chosen:,} of {known:,} tests")
