# SPDX-License-Identifier: Apache-2.0

"""A binding may name the image that the guest boots.

Specification, "Nova-Cyborg interaction": "Nova should pass the VM image UUID from the
request spec to Cyborg".
"""

import pytest
import yaml

from os_acc import exception
from os_acc.attach.requests import Requests
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import instance, uuid_of
from tests.functional.host.attach import test_rebuild
from tests.unit.fpga import CARD, CRYPTO, GZIP, OTHER_CARD, POWER_ON, held, upload


@pytest.fixture
def book(fpgas, tmp_path):
    """Return the requests of a host with two cards, with a profile for each number."""
    group = {f"resources:{fpgas.provider(CARD).device.resource_class}": "1"}
    gzip = {**group, "accel:function_id": GZIP}
    profiles = [
        {"name": "one", "groups": [group]},
        {"name": "two", "groups": [group, group]},
        {"name": "gzip", "groups": [gzip]},
    ]
    place = tmp_path / "profiles.yaml"
    place.write_text(yaml.safe_dump(profiles, sort_keys=False))
    fpgas.groups["os_acc_profiles"] = {"catalogue": str(place)}
    fpgas.restart()
    upload(fpgas)
    upload(fpgas, "crypto", CRYPTO)
    return Requests(fpgas.manager, fpgas.manager.profiles.source)


def binding(bench, place=CARD, **more):
    return {
        "hostname": "node1",
        "device_rp_uuid": bench.provider(place).uuid,
        "instance_uuid": uuid_of(1),
        **more,
    }


def vm_image(bench, function=GZIP):
    return test_rebuild.vm_image(bench, "vm", function_id=function)


def test_the_image_of_a_bound_request_names_its_function(fpgas, book):
    (one,) = book.create("one")
    asked = {one.uuid: binding(fpgas, image_id=vm_image(fpgas))}
    (bound,) = book.bind(asked)
    assert bound.state is RequestState.BOUND
    assert held(fpgas) == GZIP
    # The same bindings again, and without the image, confirm it.
    assert book.bind(asked) == (bound,)
    assert book.bind({one.uuid: binding(fpgas)}) == (bound,)
    assert fpgas.programmings() == ["done"]


@pytest.mark.parametrize("image", [{"image_id": None}, {"image_id": ""}])
def test_a_binding_need_not_name_an_image(fpgas, book, image):
    (one,) = book.create("one")
    book.bind({one.uuid: binding(fpgas, **image)})
    assert held(fpgas) == POWER_ON


def test_the_same_bindings_with_another_image_are_a_rebuild(fpgas, book):
    (one,) = book.create("one")
    for function in (GZIP, CRYPTO):
        image = vm_image(fpgas, function)
        (bound,) = book.bind({one.uuid: binding(fpgas, image_id=image)})
        assert bound.state is RequestState.BOUND
        assert held(fpgas) == function


def test_a_rebuild_that_contradicts_the_profile_is_refused(fpgas, book):
    (one,) = book.create("gzip")
    asked = {one.uuid: binding(fpgas)}
    (bound,) = book.bind(asked)
    image = vm_image(fpgas, CRYPTO)
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO):
        book.bind({one.uuid: binding(fpgas, image_id=image)})
    # A plug without the flavor: the request of its profile is recorded.
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO):
        fpgas.manager.plug(instance(1) | {"image_id": image}, None, None)
    assert book.bind(asked) == (bound,)
    assert held(fpgas) == GZIP


def test_an_instance_boots_one_image(fpgas, book):
    first, second = book.create("two")
    image, other = vm_image(fpgas), upload(fpgas, "other")
    with pytest.raises(exception.InvalidInput) as caught:
        book.bind(
            {
                first.uuid: binding(fpgas, image_id=image),
                second.uuid: binding(fpgas, OTHER_CARD, image_id=other),
            }
        )
    assert image in str(caught.value)
    assert other in str(caught.value)
    assert {each.state for each in book.find()} == {RequestState.INITIAL}


def test_an_image_of_one_binding_is_that_of_the_instance(fpgas, book):
    first, second = book.create("two")
    book.bind(
        {
            first.uuid: binding(fpgas, image_id=vm_image(fpgas)),
            second.uuid: binding(fpgas, OTHER_CARD),
        }
    )
    assert (held(fpgas), held(fpgas, OTHER_CARD)) == (GZIP, GZIP)


@pytest.mark.parametrize("wrong", [7, ["x"]])
def test_an_image_is_named_by_text(fpgas, book, wrong):
    (one,) = book.create("one")
    with pytest.raises(exception.InvalidInput, match="image_id"):
        book.bind({one.uuid: binding(fpgas, image_id=wrong)})
    assert [each.state for each in book.find()] == [RequestState.INITIAL]
