# SPDX-License-Identifier: Apache-2.0

"""The simulated host of the demo, and the processes on it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from os_acc import exception
from os_acc.objects.api import InstanceDict
from os_acc.objects.device import Provider
from os_acc.testing import HostSpec, TestHost, hosts, pci_ids, privileged
from os_acc.testing.demo import compute, shelf
from os_acc.testing.test_host import EVERYTHING

_DEVICE_SPEC = ('{"address": "0000:3b:00.0", "num_vfs": 4}', EVERYTHING)


class DemoHost(TestHost):
    """The simulated host of the demonstration, with a configuration file.

    :ivar config_file: path of the configuration file.
    :ivar log: path of the log of this process and of the helpers.
    """

    def __init__(self, directory: str) -> None:
        profiles = os.path.join(directory, "profiles")
        super().__init__(
            directory,
            _host(),
            node_name="compute-1",
            device_spec=_DEVICE_SPEC,
            groups={"os_acc_profiles": {"catalogue": profiles}},
        )
        shelf.fill_profiles(profiles)
        pci_ids.install(self.root)
        self.config_file = self.write_config()
        self.log = _log(directory)
        shelf.fill(self.images)

    def kill_in_mid_plug(self, instance: InstanceDict, provider: Provider) -> int:
        """Plug in another process, and kill it with all its helpers.

        It is killed when the last function of the device is unbound from its driver
        and not yet bound to vfio-pci.

        :returns: the process's exit status, as subprocess has it.
        :raises TimeoutError: the process did not get there.
        """
        last = provider.device.handles[0].members[-1]
        self.kernel.hang(last, "drivers_probe")
        program = [sys.executable, "-m", compute.__name__]
        where = [self.config_file, self.root]
        what = [instance["uuid"], instance["name"], provider.uuid]
        with open(self.log, "ab") as log:
            # In a session of its own, and privsep's helpers stay in it.
            process = subprocess.Popen(
                [*program, *where, *what], stderr=log, start_new_session=True
            )
        try:
            self.kernel.wait_until_blocked()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        self.kernel.lift()
        return status


@contextlib.contextmanager
def build(keep: str | None) -> Iterator[DemoHost]:
    """Build the host; remove it at the end, unless it is kept.

    :param keep: directory in which to keep it, empty or not existing yet.
    :raises InvalidInput: the directory cannot be used.
    """
    with contextlib.ExitStack() as cleaning:
        cleaning.enter_context(_unwinding_at_the_end())
        directory = _kept(keep) if keep else tempfile.mkdtemp(prefix="os-acc-demo-")
        if not keep:
            cleaning.callback(shutil.rmtree, directory)
        cleaning.enter_context(_logging_to(_log(directory)))
        for context in privileged.CONTEXTS:
            cleaning.callback(context.stop)
        yield DemoHost(directory)


def _host() -> HostSpec:
    host = hosts.two_socket_host()
    functions = (*host.functions, hosts.dfl("0000:b3", 1))
    return dataclasses.replace(host, functions=functions)


def _log(directory: str) -> str:
    return os.path.join(directory, "os-acc.log")


def _kept(place: str) -> str:
    directory = os.path.abspath(place)
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise exception.InvalidInput(
                f"{directory} is not empty", hint="name a new directory"
            )
    except OSError as error:
        raise exception.InvalidInput(
            f"{directory} cannot be used: {error.strerror}", hint="name a new directory"
        ) from error
    return directory


@contextlib.contextmanager
def _unwinding_at_the_end() -> Iterator[None]:
    """Let SIGTERM end this process like Ctrl-C, so that it cleans up."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _logging_to(path: str) -> Iterator[None]:
    """Write the log to a file, as the demo writes to the terminal."""
    logger = logging.getLogger()
    before = logger.handlers[:]
    handler = logging.FileHandler(path)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = before
        handler.close()
