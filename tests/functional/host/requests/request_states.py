# SPDX-License-Identifier: Apache-2.0

"""Actions on accelerator requests, and the resulting states."""

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import uuid_of

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
GPUS, FPGAS = "CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_FPGA"
NICS = "CUSTOM_ACCELERATOR_NIC"
#: Errors: the state of a request, other accelerators of the instance, no such request.
IN_STATE = exception.ConflictReason.REQUEST
HAS_OTHERS = exception.ConflictReason.CONSUMER
NO_REQUEST = exception.ObjectKind.REQUEST
TOO_FAR = exception.NoDeviceReason.NUMA_POLICY


def binding(bench, place, number=1, host="node1"):
    return {
        "hostname": host,
        "device_rp_uuid": bench.provider(place).uuid,
        "instance_uuid": uuid_of(number),
    }


def states(book, **which):
    return [each.state for each in book.find(**which)]


def bind(bench, book, *made, number=1, place=GPU):
    return book.bind({each.uuid: binding(bench, place, number) for each in made})


def fail_to_bind(bench, book, one):
    """Bind a request while another instance has the card."""
    bench.plug(9, GPU)
    with pytest.raises(exception.NoDeviceAvailable):
        bind(bench, book, one)
    bench.unplug(9)


def reach(state, bench, book, one):
    """Bring a request into a state."""
    if state is RequestState.BIND_FAILED:
        fail_to_bind(bench, book, one)
    elif state is not RequestState.INITIAL:
        bind(bench, book, one)
    if state is RequestState.UNBOUND:
        book.unbind([one.uuid])
    (found,) = book.find()
    assert found.state is state
    return found
