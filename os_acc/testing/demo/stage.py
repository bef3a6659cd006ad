# SPDX-License-Identifier: Apache-2.0

"""The simulated host, its configuration and the processes on it."""

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

from os_acc import exception, privsep
from os_acc.objects.api import InstanceDict
from os_acc.objects.device import Provider
from os_acc.testing import FakeKernel, HostSpec, helper, hosts
from os_acc.testing.demo import compute, shelf

_CONFIG = """\
[os_acc]
state_path = {state}
node_name = compute-1
device_spec = {{"address": "0000:3b:00.0", "num_vfs": 4}}
device_spec = {{"address": "*:*:*.*"}}

[os_acc_base]
helper_command = {helper}

[os_acc_inspect]
helper_command = {helper}

[os_acc_image]
helper_command = {helper}

[os_acc_bitstreams]
source = directory
directory = {images}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """Where it all happens.

    :ivar directory: of the host's tree, the configuration, the state, the log.
    :ivar config: path of the configuration file.
    """

    directory: str
    kernel: FakeKernel
    config: str
    log: str

    def kill_in_mid_plug(self, instance: InstanceDict, provider: Provider) -> int:
        """Plug in another process, and kill that with all its helpers.

        It dies when the last function of the device has been taken from its
        driver and is not yet with vfio-pci.

        :returns: the process's exit status, as subprocess has it.
        :raises TimeoutError: it did not get there.
        """
        last = provider.device.handles[0].members[-1]
        self.kernel.hang(last, "drivers_probe")
        program = [sys.executable, "-m", compute.__name__]
        where = [self.config, self.kernel.root]
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
def build(keep: str | None) -> Iterator[Stage]:
    """Make the host; it is gone at the end, unless there is a place to keep it.

    :param keep: a directory that is empty or does not exist yet.
    :raises InvalidInput: it cannot be used.
    """
    with contextlib.ExitStack() as cleaning:
        cleaning.enter_context(_unwinding_at_the_end())
        directory = _kept(keep) if keep else tempfile.mkdtemp(prefix="os-acc-demo-")
        if not keep:
            cleaning.callback(shutil.rmtree, directory)
        log = os.path.join(directory, "os-acc.log")
        cleaning.enter_context(_logging_to(log))
        for context in (privsep.base, privsep.inspect, privsep.image):
            cleaning.callback(context.stop)
        root = os.path.join(directory, "host")
        kernel = FakeKernel.build(root, _host())
        shelf.fill(os.path.join(directory, "images"))
        yield Stage(directory, kernel, _configure(directory, kernel.root), log)


def _host() -> HostSpec:
    host = hosts.two_socket_host()
    functions = (*host.functions, hosts.dfl("0000:b3", 1))
    return dataclasses.replace(host, functions=functions)


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


def _configure(directory: str, root: str) -> str:
    path = os.path.join(directory, "os-acc.conf")
    # oslo.config replaces $name in values.
    text = _CONFIG.format(
        state=os.path.join(directory, "state").replace("$", "$$"),
        images=os.path.join(directory, "images").replace("$", "$$"),
        helper=helper.command(root, path).replace("$", "$$"),
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


@contextlib.contextmanager
def _unwinding_at_the_end() -> Iterator[None]:
    """Let SIGTERM end this process like Ctrl-C: nothing may stay behind."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _logging_to(path: str) -> Iterator[None]:
    """Let the log go to a file: the terminal is for what is shown."""
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
