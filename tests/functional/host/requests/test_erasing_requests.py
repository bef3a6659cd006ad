# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests whose devices a plugin erases after they are unbound."""

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import uuid_of
from tests.functional.host.requests.request_states import GPU, bind, states
from tests.unit import acme
from tests.unit.acme import advance, erasing

OTHER = "0000:b1:00.0"


@pytest.fixture(autouse=True)
def _erases(install_plugins):
    install_plugins(acme="tests.unit.acme:ErasesPci")


def test_a_request_is_bound_again_to_a_device_that_is_erased(bench, book, one):
    bind(bench, book, one)
    acme.write_medium(bench.root, GPU)
    book.unbind([one.uuid])
    assert states(book) == [RequestState.UNBOUND]
    assert erasing(bench) == [GPU]
    with pytest.raises(exception.NoDeviceAvailable, match="being erased"):
        bind(bench, book, one, number=2)
    assert erasing(bench) == [GPU]
    advance(bench)
    assert not acme.has_data(bench.root, GPU)
    book.unbind([one.uuid])
    (bound,) = bind(bench, book, one, number=2)
    assert bound.state is RequestState.BOUND
    (lease,) = bench.manager.store.leases()
    assert (str(lease.address), lease.consumer) == (GPU, uuid_of(2))


def test_a_request_is_bound_to_another_device_meanwhile(bench, book, one):
    bind(bench, book, one)
    acme.write_medium(bench.root, GPU)
    book.unbind([one.uuid])
    (bound,) = bind(bench, book, one, number=2, place=OTHER)
    assert bound.state is RequestState.BOUND
    # The lease of the erasure has a request of its own.
    assert len(bench.manager.store.leases()) == 2
    advance(bench)
    (lease,) = bench.manager.store.leases()
    assert str(lease.address) == OTHER
    assert states(book) == [RequestState.BOUND]
    book.unbind([one.uuid])
    assert erasing(bench) == [OTHER]


def test_a_deleted_request_leaves_the_erasure(bench, book, one):
    bind(bench, book, one)
    acme.write_medium(bench.root, GPU)
    book.unbind([one.uuid])
    book.delete([one.uuid])
    assert erasing(bench) == [GPU]
    advance(bench)
    assert bench.manager.store.leases() == ()
    assert not acme.has_data(bench.root, GPU)
