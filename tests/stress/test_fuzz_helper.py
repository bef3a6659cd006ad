# SPDX-License-Identifier: Apache-2.0

"""A real helper answers every message, and runs nothing but entry points."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import os_acc
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel, hosts
from tests.random_values import RandomValues, shown
from tests.stress import privileged_contract
from tests.stress.file_changes import picture
from tests.stress.fuzzing import SHARES, told
from tests.stress.hostile_client import (
    REFUSED,
    RETURNED,
    connected,
    delivered,
    pack,
)
from tests.stress.privileged_calls import (
    arguments,
    check_answer,
    forget_calls,
    host_of,
    outcomes,
)
from tests.stress.privileged_host import Arguments, EntryPoint, Host

#: The number of calls of each entry point.
CALLS = 750
#: The number of random messages, in all.
MESSAGES = 2_000
CONTEXTS = {each.context for each in privileged_contract.OWN.values()}
PING = (1,)
_NO_MODULE = "builtins.ModuleNotFoundError"


@pytest.fixture
def fake(place: str) -> FakeKernel:
    return FakeKernel.build(f"{place}/host", hosts.two_socket_host())


@pytest.fixture
def nothing_is_run(place: str, fake: FakeKernel) -> Iterator[str]:
    """Yield a path beside the host; check that neither host nor path changes."""
    os.mkdir(f"{place}/beside")
    with open(f"{place}/beside/file", "w", encoding="ascii") as file:
        file.write("as it was")
    before = picture(place)
    yield f"{place}/beside/file"
    assert fake.writes() == []
    assert picture(place) == before


def sendable(name: str, host: Host, seed: str, number: int) -> Arguments:
    """Return arguments as the helper gets them, or texts if they cannot be sent."""
    given = arguments(name, host, seed, number)
    try:
        return tuple(delivered(given))
    except (ValueError, TypeError, OverflowError):
        return tuple(delivered([shown(each) for each in given]))


@pytest.mark.parametrize("name", privileged_contract.ALL)
def test_calls_through_the_channel_write_nothing_else(fake, seed, share, fuzzed, name):
    entry_point, host, done = privileged_contract.ALL[name], host_of(fake), 0
    calls = share.select(range(CALLS), SHARES)
    with connected(entry_point.context, fake.root) as client:
        for number in calls:
            given = sendable(name, host, seed, number)
            with told(seed, number, name + shown(given)):
                kind, *rest = client.call(entry_point.name, *given)
                if not entry_point.fits(given):
                    assert (kind, rest[0]) == (REFUSED, "builtins.TypeError")
                    continue
                assert kind == RETURNED, rest
                check_answer(entry_point, given, rest[0])
                if not entry_point.takes(*given):
                    continue
                if Outcome.STUCK in outcomes(entry_point, rest[0]):
                    _let_it_end(entry_point, host, given)
                writes = fake.writes()[done:]
                done += len(writes)
                permitted = entry_point.permitted(host, given)
                assert {(each.path, each.text) for each in writes} <= permitted
                forget_calls(fake)
    assert len(fake.writes()) == done
    fuzzed("privileged calls", len(calls))


def _let_it_end(entry_point: EntryPoint, host: Host, given: Arguments) -> None:
    """Wait for the worker, which holds the locks for as long as it lives."""
    for card in entry_point.locked(host, given):
        path = f"{host.root}/run/os_acc/{card.name}"
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)


# -- calls of other names than entry points --------------------------------------


def own_names() -> list[str]:
    """Return the dotted names of everything in our modules."""
    names = []
    for module in modules():
        held = importlib.import_module(module)
        names += [f"{module}.{name}" for name in vars(held)]
    return names


def modules() -> list[str]:
    """Return our modules but those that Nova alone can import."""
    found = pkgutil.walk_packages(os_acc.__path__, f"{os_acc.__name__}.")
    return [
        module.name
        for module in found
        if not module.name.endswith("__main__")
        and not module.name.startswith("os_acc.nova.")
    ]


#: Further names, and arguments that make them leave a trace.
OTHERS: dict[str, Callable[[str], Arguments]] = {
    "os.system": lambda path: (f"echo changed > {path}",),
    "os.popen": lambda path: (f"echo changed > {path}",),
    "os.unlink": lambda path: (path,),
    "os.mkdir": lambda path: (f"{path}.d",),
    "os.kill": lambda _path: (os.getpid(), 9),
    "os._exit": lambda _path: (0,),
    "subprocess.run": lambda path: (["touch", path],),
    "subprocess.Popen": lambda path: (["rm", path],),
    "shutil.rmtree": lambda path: (os.path.dirname(path),),
    "builtins.exec": lambda path: (f"open({path!r}, 'w')",),
    "builtins.eval": lambda path: (f"open({path!r}, 'w')",),
    "builtins.open": lambda path: (path, "w"),
    "pathlib.Path.unlink": lambda path: (path,),
    "oslo_concurrency.processutils.execute": lambda path: ("touch", path),
    "oslo_utils.importutils.import_class": lambda _path: ("os.system",),
    "os_acc.privsep.pci_functions.os.unlink": lambda path: (path,),
    "os_acc.privsep.kernel.current.write": lambda path: (path, "changed"),
    "os_acc.privsep.kernel.Kernel.write": lambda path: (None, path, "changed"),
    "os_acc.privsep.binding.take.func": lambda _path: (),
    "os_acc.privsep.binding._take": lambda _path: (None,),
}


@pytest.mark.parametrize("context", sorted(CONTEXTS))
def test_only_entry_points_of_this_context_are_called(
    fake, nothing_is_run, fuzzed, context
):
    rows = privileged_contract.ALL.values()
    mine = {each.name for each in rows if each.context == context}
    names = [(name, (nothing_is_run, "changed")) for name in own_names()]
    names += [(name, make(nothing_is_run)) for name, make in OTHERS.items()]
    asked = 0
    with connected(context, fake.root) as client:
        for name, given in names:
            if name not in mine:
                kind, error, said, *_ = client.call(name, *given)
                assert kind == REFUSED, name
                # A call of the function would have raised another error.
                absent = error in ("builtins.ImportError", _NO_MODULE)
                assert absent or "not exported" in said[0], (name, error, said)
                asked += 1
        assert client.ask(PING) == (2,)
    # The entry points of the other contexts are among them.
    assert asked > len(names) - len(mine) - 1
    fuzzed("names asked of a helper", asked)


def test_a_name_that_is_none_is_refused(fake, nothing_is_run):
    with connected("base", fake.root) as client:
        for name in (
            None,
            7,
            b"os.system",
            "",
            ".",
            "..",
            "take",
            "\udcff",
            "x" * 10**6,
        ):
            assert client.call(name)[0] == REFUSED
        assert client.ask(PING) == (2,)


# -- violations of the protocol ----------------------------------------------------

TAKE = "os_acc.privsep.binding.take"
INVALID = (CallResult(Outcome.INVALID, errno.EINVAL),)
#: Messages after which the connection is as good as before.
WRONG_MESSAGES = [
    *((), (2,), (4, None), (5, "os.system", ()), (6, {"msg": "x"}), (99,), (-1,)),
    *((None,), ("3", TAKE, (), {}), (3,), (3, TAKE), (3, TAKE, ()), (3, TAKE, 5, {})),
    *((3, TAKE, (), 5), (3, TAKE, (), {1: 2}), (3, TAKE, (), {"func": "os.system"})),
    *((3, TAKE, (), {"self": 1}), (3, TAKE, (), {"_wrap_timeout": 1}), "abc", {7: 2}),
    *((3, TAKE, (), {}, "more"), (3, TAKE, None, None), (7.5,), [[]], b"abc"),
]
#: These are no messages at all: the helper may hang up.
NO_MESSAGES = {
    "no pair": pack(7),
    "nothing": pack(None),
    "three": pack((1, 2, 3)),
    "no command": pack(("one", 7)),
    "reserved": b"\xc1",
    "too many": b"\xdd\xff\xff\xff\xff",
    "too long": b"\xdb\xff\xff\xff\xff",
    "too deep": b"\x91" * 5000,
    "no key": b"\x81\x80\x00",
    "half": pack(("one", (3, TAKE, (), {})))[:-1],
    "an extension": b"\xc7\x01\x05x",
}


def test_a_wrong_message_is_refused(fake, nothing_is_run):
    with connected("base", fake.root) as client:
        for message in WRONG_MESSAGES:
            assert client.ask(message)[0] == REFUSED, message
            assert client.ask(PING) == (2,)


@pytest.mark.parametrize("data", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_is_no_message_ends_the_connection_at_most(fake, nothing_is_run, data):
    with connected("base", fake.root) as client:
        client.send(data)


def test_messages_at_random_are_refused(fake, nothing_is_run, seed, share, fuzzed):
    numbers = share.select(range(MESSAGES), SHARES)
    with connected("base", fake.root) as client:
        for number in numbers:
            message = _message(RandomValues(f"{seed} message {number}", (TAKE,)))
            with told(seed, number, shown(message)):
                kind, answer, *_ = client.ask(message)
                assert kind == REFUSED or (kind, answer) == (RETURNED, INVALID)
        assert client.ask(PING) == (2,)
    fuzzed("messages to a helper", len(numbers))


def _message(rng: RandomValues) -> object:
    message = rng.near((3, TAKE, (rng.value(), rng.value()), {}))
    try:
        message = delivered(message)
    except (ValueError, TypeError, OverflowError):
        return ()
    is_row = isinstance(message, tuple | str | dict)
    row = tuple(message) if is_row else (message,)
    # A ping would be answered.
    return row if row[:1] != PING else ()


# -- modules that a helper imports before it drops its privileges -------------------

_IMPORTS = """
import importlib, os, sys
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEEDS = ("os.", "subprocess.", "socket.", "shutil.", "_thread.", "sqlite3.", "signal.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "socket.__new__")
HARMLESS += ("os.register_at_fork", "socket.gethostname")
ours = ""
def audit(event, args):
    is_write = event == "open" and isinstance(args[2], int) and args[2] & WRITING
    if ours and (is_write or event.startswith(DEEDS) and event not in HARMLESS):
        print(ours, event, args)
others, names = sys.argv[1].split(","), sys.argv[2].split(",")
for name in others:
    importlib.import_module(name)
sys.addaudithook(audit)
for name in names:
    ours = name
    importlib.import_module(name)
from os_acc.privsep import kernel
assert type(kernel.current) is kernel.Kernel and kernel.current.root == "/"
"""

_OTHERS_MODULES = ("oslo_privsep.daemon", "oslo_log.log", "cliff.app", "os_traits")
# urllib3 asks the kernel whether it knows IPv6; cryptography loads OpenSSL.
_OTHERS_MODULES += (
    "keystoneauth1.session",
    "keystoneauth1.loading",
    "cryptography.x509",
)


def test_to_import_our_modules_does_nothing():
    """A helper preloads some of them while it still has all privileges."""
    command = [sys.executable, "-B", "-c", _IMPORTS]
    command += [",".join(_OTHERS_MODULES), ",".join(modules())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
