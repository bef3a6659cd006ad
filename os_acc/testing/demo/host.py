# SPDX-License-Identifier: Apache-2.0

"""The simulated host of the demo, with an image and a profile, and its compute service.

As a program it is another compute service, which plugs one accelerator.
"""

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
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import os_acc
from os_acc import exception, service
from os_acc.attach.manager import Manager
from os_acc.objects.api import AcceleratorEntry, InstanceDict
from os_acc.objects.device import Provider
from os_acc.testing import HostSpec, TestHost, helper, hosts
from os_acc.testing.image_directory import ImageDirectory
from os_acc.testing.test_host import EVERYTHING

_DEVICE_SPEC = ('{"address": "0000:3b:00.0", "num_vfs": 4}', EVERYTHING)
#: The function of the guest's flavor.
GZIP: Final = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
#: The profile for which the demo's host can program its FPGA.
_PROFILE: Final = f"""\
device_profiles:
- name: gzip
  uuid: {uuid.uuid5(uuid.UUID(GZIP), "profile")}
  description: compression, programmed on request
  groups:
  - resources:CUSTOM_ACCELERATOR_FPGA: "1"
    trait:CUSTOM_PROGRAMMABLE: required
    accel:function_name: gzip
"""


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
        fill_profiles(profiles)
        hosts.install_model_names(self.root)
        self.config_file = self.write_config()
        self.log = _log(directory)
        fill_images(self.images)

    def kill_in_mid_plug(self, instance: InstanceDict, provider: Provider) -> int:
        """Plug in another process, and kill it with all its helpers.

        It is killed when the last function of the device is unbound from its driver
        and not yet bound to vfio-pci.

        :returns: the process's exit status, as subprocess has it.
        :raises TimeoutError: the process did not get there.
        """
        last = provider.device.handles[0].members[-1]
        self.kernel.hang(last, "drivers_probe")
        program = [sys.executable, "-m", __name__]
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
        for context in helper.CONTEXTS:
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


def fill_images(images: ImageDirectory) -> None:
    """Add one image, as an operator would."""
    images.put_gbs(
        "gzip.gbs",
        GZIP,
        id=str(uuid.uuid5(uuid.UUID(GZIP), "image")),
        **{"accel:function_name": "gzip"},
    )


def fill_profiles(directory: str) -> None:
    """Make the catalogue of device profiles, with one profile."""
    os.mkdir(directory)
    path = os.path.join(directory, "gzip.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PROFILE)


def start(config: str, root: str) -> Manager:
    """Start the service as :func:`os_acc.initialize` does, below another root.

    :param config: path of the configuration file.
    """
    helper.read_config(config)
    return service.initialize(reset=True, root=root)


def plug_one(instance: InstanceDict, provider: Provider) -> list[AcceleratorEntry]:
    """Plug one unit of a provider, in the short form of ``selected_rp``."""
    extra_specs = {f"resources:{provider.device.resource_class}": "1"}
    return os_acc.plug(instance, {"uuid": provider.uuid}, extra_specs)


def main(argv: Sequence[str]) -> None:
    """Plug for ``CONFIG ROOT INSTANCE_UUID INSTANCE_NAME PROVIDER_UUID``."""
    config, root, guest, name, wanted = argv
    start(config, root)
    (provider,) = (each for each in service.get().providers() if each.uuid == wanted)
    plug_one({"uuid": guest, "name": name}, provider)


if __name__ == "__main__":
    main(sys.argv[1:])
