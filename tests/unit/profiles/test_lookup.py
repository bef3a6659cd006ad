# SPDX-License-Identifier: Apache-2.0

"""The source of device profiles, and plugs without one."""

import math

import pytest
import yaml

from os_acc import exception
from os_acc.profiles import expansion, options
from os_acc.testing import instance
from os_acc.testing.test_host import config_of
from tests.expected_errors import raises
from tests.unit.profiles.profile_examples import profile

GPU, GPUS = "0000:17:00.0", "CUSTOM_ACCELERATOR_GPU"
CYBORGS = "cccccccc-0000-4000-8000-000000000001"
NAMED = {expansion.KEY: "fpga-dp1"}
OWN = {f"resources1:{GPUS}": "1", **NAMED}
#: Has a key for a group of the profile, which is not read without the profile.
FLAVOR = {"resources1:FPGA": "1", "os_accdevice_profile_0:attach_target": "VM", **NAMED}
OTHERS = {"resources:VCPU": "2", **NAMED}


@pytest.fixture
def default(tmp_path, monkeypatch):
    """Return the catalogue's default path, in a temporary directory."""
    place = tmp_path / "etc" / "device_profiles.yaml"
    (option,) = (each for each in options.OPTIONS if each.name == "catalogue")
    monkeypatch.setattr(option, "default", str(place))
    return place


def fold(**given):
    conf = config_of()
    options.register(conf)
    for name, value in given.items():
        conf.set_override(name, value, group=options.GROUP.name)
    return expansion.ProfileLookup(conf).expanded(NAMED, math.inf)


# -- source of profiles -------------------------------------------------------------


def test_where_nobody_has_said_it_a_profile_is_left_unread(default):
    assert fold() == expansion.ExpandedFlavor(NAMED, unreadable="fpga-dp1")


def test_a_catalogue_in_the_default_place_is_read(default):
    default.parent.mkdir()
    default.write_text(yaml.safe_dump([profile()]))
    assert fold().profile == "fpga-dp1"


def test_a_catalogue_that_is_set_has_to_be_there(default, tmp_path):
    for place in (tmp_path / "none.yaml", default):
        with raises(exception.ServiceType.ACCELERATOR, match="No such file"):
            fold(catalogue=str(place))


def test_a_default_place_that_cannot_be_looked_at_is_not_empty(default):
    default.parent.write_text("no directory")
    with raises(exception.ServiceType.ACCELERATOR, match="Not a directory"):
        fold()


def test_a_link_to_a_catalogue_that_is_away_is_not_nothing(default, tmp_path):
    default.parent.mkdir()
    default.symlink_to(tmp_path / "away.yaml")
    with raises(exception.ServiceType.ACCELERATOR, match="No such file"):
        fold()


# -- a plug -------------------------------------------------------------------------


def allocated(bench, group, cyborg_group="device_profile_0"):
    """Return allocations of a GPU to one group, and of Cyborg's FPGA to another."""
    gpu = bench.provider(GPU).uuid
    return {
        "allocations": {
            gpu: {"resources": {GPUS: 1}},
            CYBORGS: {"resources": {"FPGA": 1}},
        },
        "mappings": {group: [gpu], cyborg_group: [CYBORGS]},
    }


def without_mappings(selected):
    return {"allocations": selected["allocations"]}


@pytest.mark.parametrize("specs", [NAMED, OTHERS])
@pytest.mark.parametrize("how", [dict, without_mappings])
def test_what_is_for_a_profile_that_nobody_has_read_is_refused(
    bench, default, specs, how
):
    selected = how(allocated(bench, "device_profile_0", "device_profile_1"))
    with raises(exception.ServiceType.ACCELERATOR, match="'fpga-dp1'") as caught:
        bench.manager.plug(instance(1), selected, specs)
    assert "[os_acc_profiles]" in caught.value.hint
    assert bench.plugged(1) == []


def test_one_provider_for_all_is_for_the_profile_too(bench, default):
    with raises(exception.ServiceType.ACCELERATOR, match="'fpga-dp1'"):
        bench.manager.plug(instance(1), {"uuid": bench.provider(GPU).uuid}, OWN)
    assert bench.plugged(1) == []


@pytest.mark.parametrize("how", [dict, without_mappings])
def test_the_flavors_own_groups_are_served_beside_a_profile_of_cyborgs(
    bench, default, how
):
    selected = how(allocated(bench, "1"))
    (entry,) = bench.manager.plug(instance(1), selected, OWN)
    assert (entry["pci_id"], entry["request_group"]) == (GPU, "1")
    assert bench.manager.requests_accelerators(OWN)


def test_a_profile_of_which_nothing_is_allocated_here_is_cyborgs(bench, default):
    selected = {"allocations": {CYBORGS: {"resources": {"FPGA": 1}}}}
    assert bench.manager.plug(instance(1), selected, NAMED) == []
    assert not bench.manager.requests_accelerators(NAMED)


def test_a_guest_that_has_its_devices_keeps_them(bench, default):
    selected = allocated(bench, "device_profile_0", "device_profile_1")
    # An earlier os_acc plugged without reading profiles.
    given = bench.manager.plug(instance(1), selected, None)
    assert bench.manager.plug(instance(1), selected, NAMED) == given
    bench.restart()
    assert bench.manager.plug(instance(1), selected, NAMED) == given


def test_it_is_not_told_to_give_up_what_a_profile_may_ask_for(bench, default):
    """Without mappings, the request cannot be compared with the leased devices."""
    selected = allocated(bench, "device_profile_0", "device_profile_1")
    bench.manager.plug(instance(1), selected, None)
    with raises(exception.ServiceType.ACCELERATOR, match="'fpga-dp1'"):
        bench.manager.plug(instance(1), without_mappings(selected), NAMED)
    assert bench.plugged(1) == [GPU]


@pytest.fixture
def catalogue(bench, tmp_path):
    """Plug by a catalogue and reboot; return the catalogue and the plug's result."""
    place = tmp_path / "profiles.yaml"
    bench.groups["os_acc_profiles"] = {"catalogue": str(place)}
    groups = [{f"resources:{GPUS}": "1", "accel:attach_target": "VM"}]
    place.write_text(yaml.safe_dump([{"name": "fpga-dp1", "groups": groups}]))
    selected = allocated(bench, "device_profile_0", "1")
    given = bench.manager.plug(instance(1), selected, FLAVOR)
    bench.kernel.reboot()
    bench.restart()
    return place, given


def test_what_is_recorded_needs_no_profile(bench, catalogue, monkeypatch):
    def ask(*_):
        raise AssertionError("it is not up yet")

    place, given = catalogue
    place.unlink()
    monkeypatch.setattr(bench.manager.profiles.source, "profile", ask)
    assert bench.manager.plug(instance(1), None, FLAVOR) == given
    assert bench.drivers(GPU) == ["vfio-pci"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"hw:pci_numa_affinity_policy": "near"}, exception.InvalidInput),
        ({"accel1:bitstream": "x"}, exception.InvalidExtraSpec),
    ],
)
def test_what_a_flavor_says_itself_is_judged_with_what_is_recorded(
    bench, catalogue, wrong, error
):
    with pytest.raises(error):
        bench.manager.plug(instance(1), None, FLAVOR | wrong)


def test_a_catalogue_that_is_away_is_told_and_nothing_is_given(bench, tmp_path):
    bench.groups["os_acc_profiles"] = {"catalogue": str(tmp_path / "away.yaml")}
    with raises(exception.ServiceType.ACCELERATOR, match="No such file"):
        bench.manager.plug(instance(1), allocated(bench, "device_profile_0"), NAMED)
    with raises(exception.ServiceType.ACCELERATOR, match="No such file"):
        bench.manager.requests_accelerators(NAMED)
    assert bench.plugged(1) == []
