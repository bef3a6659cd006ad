# SPDX-License-Identifier: Apache-2.0

"""A rebuild that failed or was killed leads back to an image without a request."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.testing import TestHost, hosts, image_directory
from os_acc.testing.dfl import payload
from tests.functional.host.attach.test_rebuild import (
    images_of,
    kill,
    leases,
    plug,
    refuse,
    start,
    vm_image,
)
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    POWER_ON,
    function_trait,
    held,
    is_unknown,
    upload,
)


@pytest.fixture
def images(fpgas) -> dict[str, str]:
    return images_of(fpgas) | {"plain": vm_image(fpgas, "plain")}


def fail(host: TestHost, image: str) -> None:
    """Let the card reject the bitstream of a rebuild."""
    host.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        start(host, image)
    assert is_unknown(host)


def forget_images(host: TestHost) -> None:
    """Remove each bitstream from the source, and from the cache."""
    cached = host.directory / "state" / "bitstreams"
    for file in (*host.images.path.glob("*.gbs"), *cached.glob("*")):
        if file.is_file():
            file.unlink()
    for name in ("gzip", "crypto"):
        (host.images.path / f"{name}.json").unlink()


@pytest.mark.parametrize("target", ["VM", "host"])
@pytest.mark.parametrize("known", [True, False])
def test_back_to_a_plain_image_after_a_kill_keeps_the_contents(
    fpgas, images, target, known
):
    first = plug(fpgas, images["plain"], attach_target=target)
    kill(fpgas, images[CRYPTO])
    fpgas.restart()
    if not known:
        forget_images(fpgas)
    assert start(fpgas, images["plain"]) == first
    assert held(fpgas) == POWER_ON
    assert fpgas.programmings() == []
    # It is decided now, for each call that follows.
    assert start(fpgas) == plug(fpgas, images["plain"], attach_target=target) == first
    fpgas.kernel.reboot()
    fpgas.restart()
    assert start(fpgas) == first


def test_a_killed_rebuild_without_its_bitstream_names_the_way_out(fpgas, images):
    plug(fpgas, images["plain"])
    kill(fpgas, images[CRYPTO])
    fpgas.restart()
    forget_images(fpgas)
    with pytest.raises(exception.ImageNotFound) as caught:
        start(fpgas)
    assert "unplug" in caught.value.hint


def unreadable(host: TestHost, images: dict[str, str], case: str) -> None:
    """Let the decision for an image not be possible again."""
    if case == "no source":
        host.groups["os_acc_bitstreams"]["directory"] = str(host.directory / "gone")
        host.restart()
        return
    gone = "vm-" + CRYPTO if case == "no image" else "crypto"
    for file in host.images.path.glob(f"{gone}*"):
        file.unlink()


@pytest.mark.parametrize("case", ["no source", "no image", "no bitstream"])
def test_a_decided_rebuild_is_finished_from_the_cache(fpgas, images, case):
    """The image of the guest is still the same: nothing has to be decided."""
    first = plug(fpgas, images[GZIP])
    kill(fpgas, images[CRYPTO])
    fpgas.restart()
    unreadable(fpgas, images, case)
    assert start(fpgas, images[CRYPTO]) == [{**first[0], "function_id": CRYPTO}]
    assert held(fpgas) == CRYPTO


def test_back_to_a_plain_image_restores_the_recorded_image(fpgas, images):
    fpgas.plug(2, function_id=GZIP)
    fpgas.unplug(2)
    first = plug(fpgas, images["plain"])
    fail(fpgas, images[CRYPTO])
    assert start(fpgas, images["plain"]) == [{**first[0], "function_id": GZIP}]
    assert held(fpgas) == GZIP
    assert not is_unknown(fpgas)
    fpgas.restart()
    assert start(fpgas)[0]["pci_id"] == CARD


def test_back_to_a_plain_image_of_a_flavor_with_a_trait(fpgas, images):
    fpgas.plug(2, function_id=GZIP, attach_target="none")
    fpgas.unplug(2)
    trait = function_trait(GZIP)
    first = plug(fpgas, images["plain"], trait=trait)
    content = image_directory.gbs(hosts.DFL_INTERFACE, GZIP, payload(GZIP) * 2)
    fpgas.images.put("better", content, **{"accel:function_id": GZIP})
    fail(fpgas, vm_image(fpgas, "vm-better", bitstream_name="better"))
    assert plug(fpgas, images["plain"], trait=trait) == first
    assert held(fpgas) == GZIP
    assert not is_unknown(fpgas)


def test_back_to_the_bitstream_of_the_flavor(fpgas, images):
    first = plug(fpgas, images["plain"], function_id=GZIP)
    upload(fpgas, "better", CRYPTO)
    state = leases(fpgas)
    kill(fpgas, vm_image(fpgas, "vm-gzip", bitstream_name="gzip"))
    fpgas.restart()
    assert plug(fpgas, images["plain"], function_id=GZIP) == first
    assert leases(fpgas)[0].programming == state[0].programming


def test_incomplete_contents_without_a_recorded_image_are_refused(fpgas, images):
    plug(fpgas, images["plain"])
    fail(fpgas, images[CRYPTO])
    for _ in range(2):
        error = refuse(fpgas, exception.RegionReason.UNKNOWN, images["plain"])
        assert "unplug" in error.hint
    # The other image is still possible, and so is the end of the guest.
    assert start(fpgas, images[CRYPTO])[0]["function_id"] == CRYPTO
    fail_again = vm_image(fpgas, "vm-again", function_id=GZIP)
    fail(fpgas, fail_again)
    assert start(fpgas, images["plain"])[0]["function_id"] == CRYPTO
    assert fpgas.unplug(1) == 1
    assert fpgas.drivers(CARD) == ["dfl-pci"]
