# SPDX-License-Identifier: Apache-2.0

"""Root's command works beside the compute service of an ordinary user.

If the tests run as root, the service becomes an ordinary user, and root starts its
helpers, as sudo would. Otherwise service and command have the same user: then no
files of root can be left behind, and all else is the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cliff.formatters import table

from os_acc import deadlines, privsep
from os_acc.attach.manager import Manager
from os_acc.cmd.main import OsAcc
from os_acc.testing import Snapshot, helper, uuid_of
from tests.stress import processes
from tests.stress.process_host import (
    CARDS,
    GPU,
    Attempt,
    ProcessHost,
    attempt,
    check_in_time,
    outcome,
    plug,
    unplug,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("survived")

_NOBODY = 65534
# include/uapi/linux/prctl.h
_PR_SET_DUMPABLE = 4
#: The script of an ordinary user; it needs no Python, which may be root's alone.
_ASK = """\
cd "$(dirname "$0")"
mkfifo "answer-$$"
echo "$$ $*" > requests
read status < "answer-$$"
exit "$status"
"""


def become_ordinary(temporary: Path) -> None:
    """Become an ordinary user, as nova-compute is one.

    :param temporary: for its temporary files, in place of those of the tests' user.
    """
    tempfile.tempdir = str(temporary)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        # A process that changes users loses its /proc/self without this.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)


class Sudo:
    """Runs requested commands as the user of the tests.

    :param directory: the directory of the requests.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        directory.chmod(0o777)
        self._ask = directory / "ask"
        self._ask.write_text(_ASK)
        self._requests = directory / "requests"
        os.mkfifo(self._requests)
        self._requests.chmod(0o666)

    def command(self, root: str) -> list[str]:
        """Return a ``helper_command`` that sends a request."""
        own = shlex.split(helper.command(root))
        return ["/bin/sh", str(self._ask), *own]

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        child = processes.Child(self._serve)
        try:
            yield
        finally:
            child.kill()
            child.wait()

    def _serve(self) -> None:
        # Open for writing as well, so that it never ends.
        with open(os.open(self._requests, os.O_RDWR)) as requests:
            for line in requests:
                asker, *command = shlex.split(line)
                status = subprocess.run(command, check=False).returncode
                (self._directory / f"answer-{asker}").write_text(f"{status}\n")


@pytest.fixture
def config(host: ProcessHost, pristine: Snapshot) -> Iterator[Callable[..., str]]:
    """Return a function that writes configuration files; root starts the helpers."""
    Path(host.state_path).mkdir()
    if os.geteuid() == 0:
        os.chown(host.state_path, _NOBODY, _NOBODY)
        for directory in (host.directory, os.path.dirname(host.directory)):
            os.chmod(directory, 0o711)
    sudo = Sudo(Path(host.directory, "sudo"))

    def configure(**options: object) -> str:
        return host.configure(*sudo.command(host.root), **options)

    with sudo.serving():
        yield configure


def warm_up(host: ProcessHost) -> None:
    """Import all modules while all of them can be read."""
    spare = ProcessHost(os.path.join(host.directory, f"warm-{os.getpid()}"))
    manager = spare.serve(spare.configure())
    plug(manager, 1, GPU)
    unplug(manager, 1)
    # The first table imports the module that measures cells.
    table.prettytable.PrettyTable(["x"]).get_string()
    for context in (privsep.base, privsep.inspect):
        context.stop()


def command(host: ProcessHost, config: str, *words: str) -> processes.Child:
    """Run ``os-acc`` as the user of the tests; return exit status and output."""

    def run() -> tuple[int, str]:
        warm_up(host)
        host.install()
        for context in (privsep.base, privsep.inspect):
            context.set_client_mode(True)
        said = io.StringIO()
        app = OsAcc(root=host.root, stdout=said, stderr=said)
        return app.run(["--config-file", config, *words]), said.getvalue()

    return processes.Child(run)


def provider_of(manager: Manager, card: str) -> str:
    for provider in manager.providers():
        if str(provider.device.address) == card:
            return provider.uuid
    raise LookupError(card)


def test_roots_command_beside_an_ordinary_users_service(
    host: ProcessHost, pristine: Snapshot, config: Callable[..., str]
) -> None:
    # Root's commands start while the write hangs, on slow machines for a minute.
    before = config(plug_timeout=300.0, write_timeout=300.0)
    mine, hasty = host.configure(), host.configure(unplug_timeout=2.0)
    messages = Path(host.directory, "told")
    messages.mkdir()
    messages.chmod(0o777)

    def serve() -> list[Attempt]:
        warm_up(host)
        become_ordinary(messages)
        manager = host.serve(before, inspects=True)
        tried = [attempt(lambda: plug(manager, 1, CARDS[0]))]
        stuck = deadlines.begin(attempt, lambda: plug(manager, 3, GPU))
        (messages / "provider").write_text(provider_of(manager, CARDS[1]))
        wait_until((messages / "over").exists)
        tried += [
            stuck.result(),
            # The service may unplug devices that root has plugged, and vice versa.
            attempt(lambda: unplug(manager, 2)),
            attempt(lambda: plug(manager, 1, CARDS[0])),
            attempt(lambda: unplug(manager, 1)),
        ]
        return tried

    host.kernel.hang(GPU, "unbind")
    service = processes.Child(serve)
    host.kernel.wait_until_blocked()
    wait_until((messages / "provider").exists)
    provider = (messages / "provider").read_text()

    # Root unplugs a device of the service, plugs another, and has to wait.
    status, said = outcome(command(host, mine, "unplug", uuid_of(1)))
    assert status == 0, said
    plugging = ("plug", "--instance", uuid_of(2), "--provider", provider)
    status, said = outcome(command(host, mine, *plugging))
    assert status == 0, said
    assert CARDS[1] in said
    refused = attempt(lambda: outcome(command(host, hasty, "unplug", uuid_of(3))))
    status, said = refused.value
    assert (status, "not free in time" in said) == (1, True), said
    check_in_time(refused, 2)

    host.kernel.lift()
    (messages / "over").touch()
    first, stuck, *others = outcome(service)
    assert (first.value, stuck.value) == ([CARDS[0]], [GPU])
    assert [each.value for each in others] == [1, [CARDS[0]], 1]
    # No file of root is in the way of the service.
    owner = os.stat(host.state_path).st_uid
    for place, directories, files in os.walk(host.state_path):
        for name in (*directories, *files):
            assert os.lstat(os.path.join(place, name)).st_uid == owner, name
    host.check_whole(pristine)
