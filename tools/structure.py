# SPDX-License-Identifier: Apache-2.0

"""Measure the structure of the package against its targets.

``python tools/structure.py`` prints a table: files and lines, modules at the top
level, the files that one plug enters and its stack frames, exception classes, class
names with more than one definition, and words that the vocabulary excludes. The
plug runs on the simulated kernel, with privileged code in the same process.
"""

from __future__ import annotations

import ast
import collections
import functools
import mmap
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))

import os_acc  # noqa: E402 - of this checkout, unless it was imported before

PACKAGE = Path(os_acc.__file__).parent
TESTING = PACKAGE / "testing"


class Row(NamedTuple):
    """One line of the table.

    :ivar before: the figure before the package was restructured.
    :ivar target: the highest figure that meets the target.
    :ivar reason: why a target is missed.
    """

    name: str
    before: int
    target: int
    measured: int
    reason: str = ""


# -- the source ------------------------------------------------------------


def sources(under: Path) -> list[Path]:
    """Return the Python files of a directory; those of the package without testing."""
    return sorted(
        path
        for path in under.rglob("*.py")
        if under != PACKAGE or TESTING not in path.parents
    )


def lines(paths: list[Path]) -> int:
    """Count the lines of files."""
    return sum(path.read_text().count("\n") for path in paths)


def classes(path: Path) -> Iterator[str]:
    """Yield the names of all classes of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name


def ambiguous() -> list[str]:
    """Return class names with more than one definition, testing included."""
    counted = collections.Counter(
        name for path in PACKAGE.rglob("*.py") for name in classes(path)
    )
    return sorted(name for name, count in counted.items() if count > 1)


def exceptions() -> list[str]:
    """Return the names of the public exception classes, without those of reasons."""
    from os_acc import exception

    return sorted(
        name
        for name, found in vars(exception).items()
        if isinstance(found, type)
        and issubclass(found, exception.OsAccError)
        and not name.startswith("_")
    )


def matching(word: str) -> int:
    """Count the lines of the package in which a pattern of words matches."""
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    return sum(
        bool(pattern.search(line))
        for path in sources(PACKAGE)
        for line in path.read_text().splitlines()
    )


# -- one plug --------------------------------------------------------------


class Trace:
    """The files of the package that threads enter, and the depth of writes.

    A thread that another one starts continues the stack of its starter.
    """

    def __init__(self, depths: Path) -> None:
        self.files: set[str] = set()
        self._inherited = threading.local()
        # A file: the child that writes to the kernel closes all descriptors.
        self._depths = depths

    def enter(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note the file of a call; see :func:`sys.setprofile`."""
        if event == "call" and _is_ours(frame):
            self.files.add(frame.f_code.co_filename)

    def depth(self) -> int:
        """Count the package's frames on the stack, its starters' included."""
        frame: FrameType | None = sys._getframe(1)
        count = getattr(self._inherited, "depth", 0)
        while frame is not None:
            count += _is_ours(frame)
            frame = frame.f_back
        return count

    def continued(self, run: Callable[[], object]) -> Callable[[], object]:
        """Wrap the function of a new thread, so that it inherits this stack."""
        depth = self.depth()

        @functools.wraps(run)
        def continuing() -> object:
            self._inherited.depth = depth
            return run()

        return continuing

    def written(self) -> None:
        """Report a write to the kernel, also from a forked child."""
        with self._depths.open("a") as depths:
            print(self.depth(), file=depths)

    def deepest(self) -> int:
        """Return the most frames of all writes so far."""
        return max(map(int, self._depths.read_text().split()))


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(f"{PACKAGE}/") and not name.startswith(f"{TESTING}/")


def trace_plug() -> tuple[set[str], int]:
    """Trace one plug of a PCI function on a host that is ready.

    :returns: the files it enters, and the frames on the stack of its deepest write.
    """
    from os_acc import deadlines
    from os_acc.testing import TestHost, hosts, instance, request

    with tempfile.TemporaryDirectory() as place:
        trace = Trace(Path(place, "depths"))
        bench = TestHost(Path(place), hosts.two_socket_host())
        write, start = bench.kernel.write, deadlines.start

        def traced_write(path: str, text: str) -> None:
            trace.written()
            write(path, text)

        def traced_start(run: Callable[[], object], *more: Any) -> None:
            start(trace.continued(run), *more)

        with bench:
            manager = bench.manager
            selected, specs = request(manager.providers()[0])
            bench.kernel.write = traced_write  # type: ignore[method-assign]
            deadlines.start = traced_start
            threading.setprofile(trace.enter)
            sys.setprofile(trace.enter)
            try:
                manager.plug(instance(1), selected, specs)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
                deadlines.start = start
                manager.retrier.stop(10.0)
        return trace.files, trace.deepest()


class Openings:
    """The files that the package's own code opens, in its forked children as well.

    An audit hook cannot be removed, so this one stays and counts while ``is_on``.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._count = mmap.mmap(-1, 4)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _arguments: object) -> None:
        if self.is_on and event == "open" and _is_ours(sys._getframe(1)):
            self._count[:] = (self.count() + 1).to_bytes(4, "little")

    def count(self) -> int:
        """Return the number of files opened so far."""
        return int.from_bytes(self._count[:], "little")


def count_openings() -> int:
    """Count the files that a new plug opens, of one VF on a host of nine functions."""
    from os_acc.testing import HostSpec, TestHost, hosts, instance, request

    openings = Openings()
    card = hosts.nic("0000:3b", 0, name="ens1f0", boot_vfs=8)
    with (
        tempfile.TemporaryDirectory() as place,
        TestHost(Path(place), HostSpec((card,))) as bench,
    ):
        selected, specs = request(bench.manager.providers()[0])
        openings.is_on = True
        bench.manager.plug(instance(1), selected, specs)
        openings.is_on = False
        bench.manager.retrier.stop(10.0)
    return openings.count()


# -- the table -------------------------------------------------------------


def rows() -> Iterator[Row]:
    """Measure everything."""
    package, (entered, depth) = sources(PACKAGE), trace_plug()
    top = [path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    yield Row(
        "files without testing/",
        257,
        150,
        len(package),
        "one concept per file: two thirds have fewer than 200 lines",
    )
    yield Row(
        "lines without testing/",
        37_600,
        31_000,
        lines(package),
        "limits of the helper and of responses added what deletions removed",
    )
    yield Row(
        "modules at the top level",
        32,
        5,
        len(top),
        "the handle of a node is public; commands do not import the service",
    )
    yield Row(
        "files that one plug enters",
        84,
        50,
        len(entered),
        "the values of objects and the readers of host are one file each",
    )
    yield Row(
        "frames from plug to the write",
        24,
        16,
        depth,
        "counts the worker's child and the threads, about half of the frames",
    )
    yield Row(
        "files that a plug of one of 8 VFs opens",
        257,
        130,
        count_openings(),
        "each function of the host, and the helper's own checks",
    )
    yield Row(
        "public exceptions",
        84,
        30,
        len(exceptions()),
        "callers tell these apart; their causes are reasons of one class",
    )
    yield Row("class names with two meanings", 20, 0, len(ambiguous()))
    yield Row('lines with "told"', 300, 20, matching("told"))
    name = 'lines with "nobody", "somebody", ...'
    yield Row(name, 265, 10, matching("nobody|somebody|whoever|anybody"))
    yield Row(
        "lines of tests",
        65_100,
        60_000,
        lines(sources(TOP / "tests")),
        "no duplicate was found: each test shows a behaviour of its own",
    )


def main() -> int:
    """Print the table."""
    print(f"{'':38} {'before':>8} {'target':>8} {'now':>8}")
    for row in rows():
        missed = row.measured > row.target
        note = f"  {row.reason}" if missed else ""
        print(
            f"{row.name:38} {row.before:>8,} {row.target:>8,} {row.measured:>8,}{note}"
        )
    if names := ambiguous():
        print(f"class names with two meanings: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
