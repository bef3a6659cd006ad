# SPDX-License-Identifier: Apache-2.0

"""The library programs FPGA regions on the kernel's DFL driver."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from tests.expected_errors import has, kind_of, raises

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import exception, service  # noqa: E402
from os_acc.testing import image_directory  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.time_limit import in_time  # noqa: E402

from . import dfl  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .dfl_card import Card  # noqa: E402
from .dfl_side import FpgaSide  # noqa: E402
from .machine import Machine  # noqa: E402

pytestmark = pytest.mark.family("Intel FPGA (Device Feature List)")

CLASS = "CUSTOM_ACCELERATOR_FPGA"
GZIP = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
DFL = Binding("dfl-pci")
_HELPER = Path(sys.executable).parent / "privsep-helper"
_ERRORS = (
    exception.ProgrammingReason.OPERATION,
    exception.ProgrammingReason.CRC,
    exception.ProgrammingReason.INCOMPATIBLE,
    exception.ProgrammingReason.PROTOCOL,
    exception.ProgrammingReason.FIFO_OVERFLOW,
)


@pytest.fixture(scope="module")
def process_of(
    the_machine: Machine, vm_user: OrdinaryUser, fpga_cards: tuple[Card, Card]
) -> Iterator[Callable[[OrdinaryUser], OrdinaryProcess]]:
    """Yield ``process_of(user)``: a process for jobs on the card with one port."""
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
    """Return a process of the ordinary user, shared because helpers start slowly."""
    return process_of(ordinary_user)


def payload(function: str) -> bytes:
    """Return the payload that puts a function into the hardware."""
    return uuid.UUID(function).bytes * 64 + b"the last words of it"


def make_ready(
    host: RealHost, *, write_timeout: float = 240.0, reprogram_at_release: bool = False
) -> None:
    """Initialize the library as a service with this configuration."""
    home = Path(host.options.state_path).parent
    (home / "images").mkdir(exist_ok=True)
    file = home / "os_acc.conf"
    helper = f"sudo -n {_HELPER}" if os.getuid() else str(_HELPER)
    lines = [
        "[os_acc]",
        f"state_path = {host.options.state_path}",
        f'device_spec = {{"address": "{host.root_side.card()}"}}',
        f"write_timeout = {write_timeout}",
        "initialize_timeout = 300",
        "helper_start_timeout = 240",
        "plug_timeout = 240",
        # A programming at release has what write_timeout leaves of it.
        "unplug_timeout = 500",
        "[os_acc_bitstreams]",
        f"reprogram_at_release = {reprogram_at_release}",
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
    """Put a bitstream into the image directory; return its id."""
    shelf = Path(host.options.state_path).parent / "images"
    content = image_directory.gbs(str(interface), function, payload(function))
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
    host: RealHost,
    *,
    image: str = "",
    trait: str = "",
    target: str = "VM",
    **requested: str,
) -> dict[str, str]:
    """Plug the card for a new instance.

    :param image: the image that the instance boots from.
    :param trait: the trait that its flavor requires, beside the requested bitstream.
    :param target: the future holder of the card.
    """
    guest = {"uuid": str(uuid.uuid4()), "name": "guest", "image_id": image}
    (provider,) = service.get().providers()
    extra_specs = {f"resources1:{CLASS}": "1", "accel1:attach_target": target}
    extra_specs |= {f"accel1:{name}": value for name, value in requested.items()}
    if trait:
        extra_specs[f"trait1:{trait}"] = "required"
    (entry,) = in_time(lambda: os_acc.plug(guest, {"uuid": provider.uuid}, extra_specs))
    card = host.root_side.card()
    assert entry.get("pci_id") == (card if target == "VM" else None)
    assert host.binding(card) == (VFIO if target == "VM" else DFL)
    return guest


def unplug(host: RealHost, guest: dict[str, str]) -> None:
    """Unplug the card; the host has it again."""
    assert os_acc.unplug(guest) == 1
    assert host.binding(host.root_side.card()) == DFL


def traits() -> frozenset[str]:
    """Return the traits of the card's provider for the contents of its region."""
    (provider,) = service.get().providers()
    return frozenset(each for each in provider.device.traits if "_FUNCTION_" in each)


def each_flavor_gets_its_function(host: RealHost) -> None:
    assert os.getuid() != 0
    hardware: Any = host.root_side
    make_ready(host)
    gzip = upload(host, "gzip", GZIP)
    upload(host, "crypto", CRYPTO)
    booted = upload(host, "guest", CRYPTO, tags=())
    first = traits()

    # A function that the region holds already.
    unplug(host, plug(host, trait=min(first)))
    # The card was guest-writable: the contents of its region are unverified.
    assert traits() == frozenset()
    with pytest.raises(
        exception.RegionUnusable, check=has(reason=exception.RegionReason.MISMATCH)
    ):
        plug(host, trait=min(first))

    # The card as it is, without a request for a function.
    unplug(host, plug(host))
    assert (hardware.holds(), hardware.programmed()) == (str(dfl.FIRST_FUNCTION), 0)

    # A bitstream.
    hardware.next_function(GZIP)
    hardware.record()
    guest = plug(host, bitstream_id=gzip)
    assert hardware.recorded() == payload(GZIP)
    assert (hardware.holds(), hardware.programmed()) == (GZIP, 1)
    entries = os_acc.attached(guest)[guest["uuid"]]
    assert hardware.hold_as_defined(entries) == (hardware.card(),)
    assert hardware.attached() == {hardware.card()}
    hardware.let_go()
    unplug(host, guest)

    # A region that no guest has had is not programmed again.
    unplug(host, plug(host, bitstream_name="gzip", target="none"))
    assert (hardware.holds(), hardware.programmed()) == (GZIP, 2)
    after = traits()
    assert after
    assert first.isdisjoint(after)
    unplug(host, plug(host, function_id=GZIP, target="none"))
    unplug(host, plug(host, bitstream_id=gzip, target="none"))
    unplug(host, plug(host, trait=min(after)))
    assert (hardware.holds(), hardware.programmed()) == (GZIP, 2)

    # The request of the instance's own image.
    hardware.next_function(CRYPTO)
    unplug(host, plug(host, image=booted))
    unplug(host, plug(host, function_name="crypto"))
    assert (hardware.holds(), hardware.programmed()) == (CRYPTO, 4)


def a_function_is_offered_again_after_a_guest(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host, reprogram_at_release=True)
    upload(host, "gzip", GZIP)
    hardware.next_function(GZIP)
    unplug(host, plug(host, bitstream_name="gzip", target="none"))
    function, before = traits(), hardware.programmed()
    guest = plug(host, trait=min(function))
    assert traits() == frozenset()
    unplug(host, guest)
    assert (hardware.holds(), hardware.programmed()) == (GZIP, before + 1)
    assert traits() == function
    assert os_acc.attached() == {}


def a_rebuild_gives_the_guest_the_function_of_its_image(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    images = {}
    for name, function in (("gzip", GZIP), ("crypto", CRYPTO)):
        upload(host, name, function)
        images[function] = upload(host, f"guest-{name}", function, tags=())
    hardware.next_function(GZIP)
    guest: Any = plug(host, image=images[GZIP])
    assert (hardware.holds(), hardware.programmed()) == (GZIP, 1)

    # A device that the guest still holds is not taken from it.
    guest["image_id"] = images[CRYPTO]
    hardware.hold(hardware.card())
    with pytest.raises(exception.DeviceInUse):
        os_acc.plug(guest, None, None)
    hardware.let_go()
    assert (hardware.holds(), hardware.programmed()) == (GZIP, 1)

    hardware.next_function(CRYPTO)
    for _ in range(2):
        (entry,) = in_time(lambda: os_acc.plug(guest, None, None))
        assert entry["pci_id"] == hardware.card()
        assert host.binding(hardware.card()) == VFIO
        assert (hardware.holds(), hardware.programmed()) == (CRYPTO, 2)
    unplug(host, guest)


def only_what_is_built_for_a_card_reaches_it(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    foreign = upload(host, "foreign", GZIP, interface=dfl.OTHER_INTERFACE)
    with pytest.raises(
        exception.ImageUnusable, check=has(reason=exception.ImageReason.MISMATCH)
    ):
        plug(host, bitstream_id=foreign)
    assert hardware.is_untouched()
    assert os_acc.attached() == {}
    own = upload(host, "gzip", GZIP)
    hardware.open_port()
    try:
        # An unbind of the driver kills any process that has the port open.
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
        with raises(kind) as failed:
            plug(host, bitstream_id=gzip)
        assert kind_of(failed.value) is kind
        assert os_acc.attached() == {}
        with pytest.raises(
            exception.RegionUnusable, check=has(reason=exception.RegionReason.UNKNOWN)
        ):
            plug(host)
    assert hardware.holds() == str(dfl.FIRST_FUNCTION)
    hardware.next_function(GZIP)
    unplug(host, plug(host, bitstream_id=gzip))
    assert (hardware.holds(), hardware.programmed()) == (GZIP, len(_ERRORS) + 1)


def a_card_that_never_completes_is_waited_for_in_vain(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    gzip, crypto = upload(host, "gzip", GZIP), upload(host, "crypto", CRYPTO)
    hardware.next_function(GZIP)
    unplug(host, plug(host, bitstream_id=gzip))
    hardware.never_complete()
    with pytest.raises(
        exception.ProgrammingFailed,
        check=has(reason=exception.ProgrammingReason.TIMEOUT),
    ):
        plug(host, bitstream_id=crypto)
    hardware.complete()
    hardware.next_function(CRYPTO)
    unplug(host, plug(host, bitstream_id=crypto))
    # Shorter than the kernel's timeout of 8 s.
    make_ready(host, write_timeout=4.0)
    hardware.never_complete()
    with pytest.raises(exception.DeviceStuck):
        plug(host, bitstream_id=gzip)
    # The unfinished write keeps the card leased.
    assert len(os_acc.attached()) == 1
    hardware.next_function(GZIP)
    hardware.complete()
    make_ready(host)
    assert os_acc.attached() == {}
    unplug(host, plug(host, bitstream_id=gzip))
    assert hardware.holds() == GZIP


def no_other_driver_takes_a_card(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    gzip = upload(host, "gzip", GZIP)
    hardware.next_function(GZIP)
    hardware.watch_drivers()
    unplug(host, plug(host, bitstream_id=gzip))
    assert hardware.drivers() == (VFIO.driver, DFL.driver)
    hardware.fail_with(1)
    with pytest.raises(
        exception.ProgrammingFailed, check=has(reason=exception.ProgrammingReason.CRC)
    ):
        plug(host, bitstream_id=gzip)
    hardware.next_function(GZIP)
    hardware.watch_drivers()
    unplug(host, plug(host, bitstream_id=gzip))
    # The driver is bound anew, because the port is held in reset.
    assert hardware.drivers() == (DFL.driver, VFIO.driver, DFL.driver)
    assert hardware.holds() == GZIP


def a_region_is_being_programmed(host: RealHost) -> None:
    make_ready(host)
    host.root_side.next_function(GZIP)
    host.root_side.never_complete()
    plug(host, bitstream_id=upload(host, "gzip", GZIP))


def it_is_programmed_anew(host: RealHost) -> None:
    hardware: Any = host.root_side
    make_ready(host)
    assert os_acc.attached() == {}
    before = hardware.programmed()
    guest = plug(host, bitstream_name="gzip")
    # The contents are unverified, although the hardware holds the function.
    assert (hardware.holds(), hardware.programmed()) == (GZIP, before + 1)
    unplug(host, guest)


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
    each_flavor_gets_its_function,
    a_function_is_offered_again_after_a_guest,
    a_rebuild_gives_the_guest_the_function_of_its_image,
    only_what_is_built_for_a_card_reaches_it,
    each_error_of_the_hardware_has_its_type,
    a_card_that_never_completes_is_waited_for_in_vain,
    no_other_driver_takes_a_card,
    a_region_is_being_programmed,
    it_is_programmed_anew,
    root_programs_a_region,
)


@pytest.mark.usefixtures("fpga")
@pytest.mark.parametrize("job", JOBS[:5], ids=lambda job: job.__name__)
def test_as_an_ordinary_user(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)


@pytest.mark.usefixtures("fpga")
def test_no_other_driver_takes_a_card(
    process: OrdinaryProcess, the_machine: Machine
) -> None:
    # bochs-drm matches the cards' real ids.
    with dfl.preceded_by("bochs", the_machine.fpga, the_machine.plain_fpga):
        process.run(no_other_driver_takes_a_card)


@pytest.mark.usefixtures("fpga")
def test_as_root(process_of: Callable[[OrdinaryUser], OrdinaryProcess]) -> None:
    root = OrdinaryUser.named("root")
    root = OrdinaryUser(root.name, root.uid, root.gid, Path("/var/lib"))
    process_of(root).run(root_programs_a_region)


def test_of_a_region_whose_client_was_killed_nothing_is_known(
    process: OrdinaryProcess,
    process_of: Callable[[OrdinaryUser], OrdinaryProcess],
    ordinary_user: OrdinaryUser,
    fpga: Card,
) -> None:
    doomed = process_of(ordinary_user)

    def run_into_its_death() -> None:
        with pytest.raises(EOFError):
            doomed.run(a_region_is_being_programmed)

    run = threading.Thread(target=run_into_its_death)
    run.start()
    fpga.wait_until_pushed()
    os.kill(doomed.pid, signal.SIGKILL)
    run.join()
    fpga.complete()
    fpga.wait_until_idle()
    process.run(it_is_programmed_anew)
