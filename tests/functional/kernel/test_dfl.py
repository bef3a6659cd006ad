# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""FPGA regions, programmed through the library on the kernel's DFL driver."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import exception  # noqa: E402
from os_acc.testing import bitstreams  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.patience import in_time  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402

from . import dfl  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .dfl_card import Card  # noqa: E402
from .dfl_side import FpgaSide  # noqa: E402
from .machine import Machine  # noqa: E402

CLASS = "CUSTOM_ACCELERATOR_FPGA"
GZIP = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
DFL = Binding("dfl-pci")
_HELPER = Path(sys.executable).parent / "privsep-helper"
_ERRORS = (
    exception.ProgrammingOperationError,
    exception.ProgrammingCrcError,
    exception.ProgrammingIncompatible,
    exception.ProgrammingProtocolError,
    exception.ProgrammingFifoOverflow,
)


@pytest.fixture(scope="module")
def process_of(
    the_machine: Machine, vm_user: OrdinaryUser, fpga_cards: tuple[Card, Card]
) -> Iterator[Callable[[OrdinaryUser], OrdinaryProcess]]:
    """``process_of(user)`` runs jobs on the card with one port in a new process."""
    with ExitStack() as processes:

        def start(user: OrdinaryUser) -> OrdinaryProcess:
            side = FpgaSide(the_machine, vm_user, fpga_cards[0])
            process = OrdinaryProcess(user, side, JOBS, command="")
            processes.callback(process.close)
            return process

        yield start


@pytest.fixture(scope="module")
def process(
    process_of: Callable[[OrdinaryUser], OrdinaryProcess], ordinary_user: OrdinaryUser
) -> OrdinaryProcess:
    """A process of the ordinary user's: to start helpers takes longest of all."""
    return process_of(ordinary_user)


def payload(function: str) -> bytes:
    """What the hardware is given to hold a function."""
    return uuid.UUID(function).bytes * 64 + b"the last words of it"


def make_ready(host: RealHost, *, write_timeout: float = 240.0) -> None:
    """Initialize the library as a service that has this configuration."""
    home = Path(host.options.state_path).parent
    (home / "images").mkdir(exist_ok=True)
    file = home / "os_acc.conf"
    helper = f"sudo -n {_HELPER}" if os.getuid() else str(_HELPER)
    lines = [
        "[os_acc]",
        f"state_path = {host.options.state_path}",
        f'device_spec = {{"address": "{host.root_side.card()}"}}',
        f"write_timeout = {write_timeout}",
        "initialize_timeout = 240",
        "plug_timeout = 240",
        "[os_acc_bitstreams]",
        "source = directory",
        f"directory = {home}/images",
    ]
    for context in ("base", "inspect", "image"):
        lines += [f"[os_acc_{context}]"]
        lines += [f"helper_command = {helper} --config-file {file}"]
    file.write_text("\n".join(lines))
    cfg.CONF(["--config-file", str(file)], project="nova")
    os_acc.initialize(reset=True)


def upload(
    host: RealHost,
    name: str,
    function: str,
    *,
    interface: uuid.UUID = dfl.INTERFACE,
    tags: tuple[str, ...] = ("FPGA",),
) -> str:
    """Put a bitstream where images are; its id."""
    shelf = Path(host.options.state_path).parent / "images"
    content = bitstreams.gbs(str(interface), function, payload(function))
    image_id = str(uuid.uuid4())
    image = {
        "id": image_id,
        "name": name,
        "tags": tags,
        "accel:function_id": function,
        "os_hash_algo": "sha512",
        "os_hash_value": hashlib.sha512(content).hexdigest(),
    }
    if tags:
        image["accel:function_name"] = name
    (shelf / name).write_bytes(content)
    (shelf / f"{name}.json").write_text(json.dumps(image))
    return image_id


def plug(
    host: RealHost, *, image: str = "", trait: str = "", **wish: str
) -> dict[str, str]:
    """Plug the card for a new instance.

    :param image: what the instance boots from.
    :param trait: what its flavor requires, beside what it wishes.
    """
    guest = {"uuid": str(uuid.uuid4()), "name": "guest", "image_id": image}
    (provider,) = os_acc.providers()
    extra_specs = {f"resources1:{CLASS}": "1"}
    extra_specs |= {f"accel1:{name}": value for name, value in wish.items()}
    if trait:
        extra_specs[f"trait1:{trait}"] = "required"
    (entry,) = in_time(lambda: os_acc.plug(guest, {"uuid": provider.uuid}, extra_specs))
    assert entry["pci_id"] == host.root_side.card()
    assert host.binding(entry["pci_id"]) == VFIO
    return guest


def unplug(host: RealHost, guest: dict[str, str]) -> None:
    """Give the card back; the host has it again."""
    assert os_acc.unplug(guest) == 1
    assert host.binding(host.root_side.card()) == DFL


def only_what_is_built_for_a_card_reaches_it(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    foreign = upload(host, "foreign", GZIP, interface=dfl.OTHER_INTERFACE)
    with pytest.raises(exception.ImageMismatch):
        plug(host, bitstream_id=foreign)
    assert hardware.is_untouched()
    assert os_acc.attached() == {}
    own = upload(host, "gzip", GZIP)
    hardware.open_port()
    try:
        # Whoever has the port open when the driver leaves is killed.
        with pytest.raises(exception.DeviceInUse):
            plug(host, bitstream_id=own)
        with pytest.raises(exception.DeviceInUse):
            plug(host)
    finally:
        hardware.close_port()
    assert host.binding(hardware.card()) == DFL
    assert hardware.is_untouched()


def each_error_of_the_hardware_has_its_type(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    gzip = upload(host, "gzip", GZIP)
    for bit, kind in enumerate(_ERRORS):
        hardware.fail_with(bit)
        with pytest.raises(kind) as failed:
            plug(host, bitstream_id=gzip)
        assert type(failed.value) is kind
        assert os_acc.attached() == {}
        with pytest.raises(exception.RegionUnknown):
            plug(host)
    assert hardware.holds() == str(dfl.FIRST_FUNCTION)
    hardware.next_function(GZIP)
    unplug(host, plug(host, bitstream_id=gzip))
    assert (hardware.holds(), hardware.programmed()) == (GZIP, len(_ERRORS) + 1)


def root_programs_a_region(host: RealHost) -> None:
    assert os.getuid() == 0
    hardware: Any = host.root_side
    make_ready(host)
    hardware.next_function(CRYPTO)
    hardware.record()
    guest = plug(host, bitstream_id=upload(host, "crypto", CRYPTO))
    assert hardware.recorded() == payload(CRYPTO)
    assert hardware.holds() == CRYPTO
    unplug(host, guest)


JOBS: tuple[Job, ...] = (
    only_what_is_built_for_a_card_reaches_it,
    each_error_of_the_hardware_has_its_type,
    root_programs_a_region,
)


@pytest.mark.usefixtures("fpga")
@pytest.mark.parametrize("job", JOBS[:2], ids=lambda job: job.__name__)
def test_as_an_ordinary_user(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)


@pytest.mark.usefixtures("fpga")
def test_as_root(process_of: Callable[[OrdinaryUser], OrdinaryProcess]) -> None:
    root = OrdinaryUser.named("root")
    root = OrdinaryUser(root.name, root.uid, root.gid, Path("/var/lib"))
    process_of(root).run(root_programs_a_region)
