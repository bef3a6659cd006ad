# SPDX-License-Identifier: Apache-2.0

"""A helper restores recorded bindings, also where root's configuration limits it."""

from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, pci_functions, record
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel
from tests.expected_errors import raises
from tests.stress.hostile_client import RETURNED, connected
from tests.unit.privsep.root_config import (
    AUDIO,
    DENIED,
    FPGA,
    GPU,
    LEASE,
    NIC,
    OK,
    UP,
    give_back,
    named,
    take,
    targets,
    write,
)

__all__ = ["write"]


def taken_without_record(fake: FakeKernel, *places: PciAddress) -> None:
    """Bind the functions to vfio-pci without a record of their drivers."""
    assert take(*places) == [Outcome.OK] * len(places)
    for place in places:
        record.remove(place)


def test_what_has_left_device_spec_while_leased_goes_back_as_recorded(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write(named(UP))
    assert give_back(driver="pci-stub", override="pci-stub") == OK
    assert fake.state(str(GPU)).driver == "nouveau"
    assert fake.state(str(GPU)).driver_override is None


def test_a_function_of_vfio_pci_keeps_the_override_that_is_recorded(fake, write):
    """A function that the host bound at boot is restored to that binding."""
    pci_functions.rebind(GPU, "vfio-pci")
    pci_functions.set_override(GPU, "vfio-pci")
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    assert give_back(driver="vfio-pci", override="nouveau") == OK
    assert fake.state(str(GPU)).driver == "vfio-pci"
    assert fake.state(str(GPU)).driver_override == "vfio-pci"


def test_what_has_left_device_spec_while_leased_stays_taken(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write(named(UP))
    assert take(GPU) == [Outcome.OK]
    assert give_back() == OK
    assert take(GPU) == [DENIED]


def test_another_helper_goes_by_the_record_as_well(fake, write):
    """A restart of the service starts other helpers."""
    write(named(GPU))
    assert served(fake, "take", targets(GPU), 1, 30_000, LEASE) == [Outcome.OK]
    write(named(UP))
    restored = targets(GPU, more=("pci-stub", ""))
    answers = served(fake, "give_back", restored, 1, 30_000, True, LEASE)
    assert answers == [Outcome.OK]
    assert fake.state(str(GPU)).driver == "nouveau"


def served(fake: FakeKernel, name: str, *given: object) -> list[str]:
    """Return the outcomes of a call to a separate helper."""
    with connected("base", fake.root) as client:
        group = pci_functions.group(GPU)
        kind, answers, *_ = client.call(f"os_acc.privsep.binding.{name}", group, *given)
    assert kind == RETURNED, answers
    return [CallResult(*answer).outcome for answer in answers]


def test_a_broken_file_does_not_stop_what_is_recorded_from_going_back(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write("{")
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


@pytest.mark.parametrize("driver", ["", "pci-stub", "snd_hda_intel"])
def test_a_caller_cannot_take_a_function_from_its_driver_by_restoring_it(
    fake, write, driver
):
    write(named(GPU))
    assert give_back(driver=driver).outcome == DENIED
    assert give_back(NIC, driver).outcome == DENIED
    assert fake.writes() == []


def test_a_function_that_is_pulled_out_while_it_is_held_is_in_use(fake, write):
    write(named(FPGA))
    taken_without_record(fake, FPGA)
    fake.hold(str(FPGA))
    fake.hot_unplug(str(FPGA))
    restored = targets(FPGA, more=("", ""))
    group, count = pci_functions.group(FPGA), len(fake.writes())
    # Reading its driver_override would wait for the holder.
    (answer,) = binding.give_back(group, restored, 1, 3_000, False, LEASE)
    assert CallResult(*answer).outcome == Outcome.IN_USE
    assert len(fake.writes()) == count


def test_a_function_that_is_as_it_was_needs_no_record(fake, write):
    write(named(UP))
    assert give_back() == OK
    assert fake.writes() == []


def test_what_has_lost_its_record_goes_to_the_driver_that_the_kernel_chooses(
    fake, write
):
    taken_without_record(fake, GPU)
    write(named(GPU))
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


def test_what_has_lost_its_record_goes_to_no_driver_that_the_caller_chooses(
    fake, write
):
    taken_without_record(fake, GPU)
    write(named(GPU))
    assert give_back(driver="pci-stub", override="pci-stub").outcome == DENIED
    refused = give_back(driver="pci-stub")
    assert (refused.outcome, refused.observed) == (Outcome.NO_EFFECT, "nouveau")


def test_what_has_lost_its_record_and_is_not_named_stays(fake, write):
    taken_without_record(fake, GPU)
    done = len(fake.writes())
    write(named(UP))
    assert give_back().outcome == DENIED
    assert fake.writes()[done:] == []


def test_a_damaged_record_counts_as_none(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    Path(fake.root, LOCKS, f"{GPU}.lease").write_text("00000000 []\n")
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


# -- effects on the service ----------------------------------------------------------


def test_a_plug_that_root_denies_fails_and_leaves_nothing(bench, write):
    write(named(UP))
    before = bench.kernel.snapshot()
    with raises(exception.StepReason.DENIED, match="root's configuration"):
        bench.plug(1, str(GPU))
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_an_instance_keeps_what_left_device_spec_until_it_is_unplugged(bench, write):
    write(named(GPU))
    before = bench.kernel.snapshot()
    bench.plug(1, str(GPU))
    write(named(UP))
    bench.restart()
    assert bench.drivers(str(GPU), str(AUDIO)) == ["vfio-pci", "vfio-pci"]
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_a_lease_whose_records_are_lost_ends_with_the_kernels_drivers(bench, write):
    before = bench.kernel.snapshot()
    bench.plug(1, str(GPU))
    for place in (GPU, AUDIO):
        record.remove(place)
    write(named(GPU))
    bench.restart()
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
