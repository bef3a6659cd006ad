# SPDX-License-Identifier: Apache-2.0

"""Ports are released from the PF for VFs, and assigned again."""

import errno

import pytest

from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing.hosts import DFL_FUNCTION
from tests.unit.fpga_host import PORTED, VFS, WANTED, FpgaHost

OK = CallResult(Outcome.OK)
DONE = CallResult(Outcome.OK, 0, "", WANTED)
# In milliseconds: enough to begin, even on a slow machine.
SHORT = 1500


def where(host: FpgaHost) -> dict[int, str]:
    return {port.number: str(port.function) for port in host.card(PORTED).ports}


def test_the_first_ports_leave_the_host_and_come_back(host):
    assert host.release(1) == OK
    assert where(host) == {1: PORTED}
    assert host.release(2) == OK
    assert where(host) == {}
    assert host.release(1) == OK
    assert where(host) == {1: PORTED}
    assert host.assign() == OK
    assert where(host) == {0: PORTED, 1: PORTED}


def test_what_is_so_already_is_not_asked_for(host):
    host.release(2)
    done = len(host.ioctls())
    assert host.release(2) == OK
    host.make_vfs(2)
    assert host.release(2) == OK
    assert len(host.ioctls()) == done


def test_a_card_with_vfs_keeps_its_ports_where_they_are(host):
    host.release(2)
    host.make_vfs(2)
    assert host.assign() == CallResult(
        Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", "2"
    )
    assert where(host) == dict(enumerate(VFS))


def test_a_card_has_no_more_ports_than_it_has(host):
    assert host.release(3) == CallResult(Outcome.REFUSED, errno.ERANGE, "port", "2")


@pytest.mark.parametrize("node", ["dfl-port.3", "dfl-fme.2"])
def test_a_port_that_somebody_has_open_stays(host, node):
    host.kernel.open_node(node)
    answer = host.release(2)
    assert (answer.outcome, answer.errno) == (Outcome.IN_USE, errno.EBUSY)
    assert 1 in where(host)


def test_a_release_without_effect_is_seen(host):
    host.kernel.ignore(PORTED, "release")
    assert host.release(1) == CallResult(Outcome.NO_EFFECT, 0, "port", "0")


def test_an_assignment_without_effect_is_seen(host):
    host.release(2)
    host.kernel.ignore(PORTED, "assign", nth=2)
    assert host.assign() == CallResult(Outcome.NO_EFFECT, 0, "port", "1")
    assert where(host) == {0: PORTED}


def test_a_release_that_the_kernel_refuses_is_told(host):
    host.kernel.fail(PORTED, "release", errno.ENOMEM)
    assert host.release(1) == CallResult(Outcome.REFUSED, errno.ENOMEM, "port", "0")


def test_a_port_that_the_card_only_counts_is_not_missed(host):
    host.release(1)
    host.kernel.fail(PORTED, "assign", errno.ENODEV)
    assert host.assign() == OK


def test_the_port_of_a_vf_is_programmed_through_its_card(host):
    host.release(2)
    host.make_vfs(2)
    assert host.program(PORTED, number=1) == DONE
    assert host.functions(PORTED) == [DFL_FUNCTION, WANTED]


def test_the_port_of_a_vf_that_a_guest_has_is_not_programmed(host):
    host.release(2)
    host.make_vfs(2)
    assert host.take(VFS[1]) == OK
    answer = host.program(PORTED, number=1)
    assert answer == CallResult(Outcome.REFUSED, errno.ENODEV, "port", "1")
    assert host.program(PORTED, number=0) == DONE


def test_a_vf_whose_port_is_programmed_cannot_be_taken_meanwhile(host):
    host.release(2)
    host.make_vfs(2)
    host.kernel.hang(PORTED, "program")
    assert host.program(PORTED, milliseconds=SHORT).outcome == Outcome.STUCK
    assert host.take(VFS[0], milliseconds=100).outcome == Outcome.BUSY
    host.let_go()
