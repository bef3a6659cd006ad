# SPDX-License-Identifier: Apache-2.0

"""Configure the services of a QuickAssist PF, and read its heartbeat.

Documentation/ABI/testing/sysfs-driver-qat and debugfs-driver-qat; adf_sysfs.c and
adf_heartbeat_dbgfs.c in drivers/crypto/intel/qat/qat_common.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from functools import partial

from os_acc import privsep
from os_acc.objects import qat
from os_acc.objects.pci import PciAddress
from os_acc.privsep import (
    HealthReading,
    StepTarget,
    kernel,
    pci_functions,
    privileged_conf,
    request,
    sriov,
    worker,
)
from os_acc.privsep.kernel import LOCKS, StateFile
from os_acc.privsep.outcome import OK, CallRefused, CallResult, Outcome

_UP, _DOWN = "up", "down"
_DEBUGFS = "sys/kernel/debug"
_HEALTHY, _UNRESPONSIVE = "0", "-1"
# Services that this version does not know may have to be restored.
_TEXT = re.compile("[a-z0-9;]{1,64}", re.ASCII)


class QatRequest(request.CardRequest):
    """The services of a PF, as a number (:func:`os_acc.objects.qat.number_of`)."""

    __slots__ = ()

    @property
    def services(self) -> qat.QatServices:
        """The services of the number."""
        return qat.services_of(self.count)

    def validate(self) -> None:
        """Check that a device has this combination of services."""
        request.require(self.count <= qat.HIGHEST_NUMBER)
        request.require(qat.are_possible(self.services))


@request.entrypoint(privsep.base, QatRequest)
def set_qat_services(call: QatRequest) -> CallResult:
    """Configure a PF without VFs for these services; it is up afterwards.

    A change stops the device. The kernel refuses that while a user of the host holds
    it, and this call while it has VFs, which would lose it.
    """
    seconds = call.milliseconds / 1000
    return worker.run([call.card], call.epoch, seconds, lambda _index: _set(call))[0]


@privsep.base.health_step
def heartbeat(target: StepTarget) -> HealthReading:
    """Query the heartbeat of a PF, in debugfs since Linux 6.6.

    The directory is there while the device is up. A query compares counters in memory
    and sends nothing to the device. If the device does not respond, the kernel notifies
    the VFs, and resets it only where the operator has set ``qat/auto_reset``.

    The status is also -1 if the device was not queried: within ``heartbeat/config``
    milliseconds of another query, or during a restart. ``queries_sent`` shows it.

    :raises OSError: ENOENT: there is no heartbeat: no debugfs, an earlier kernel, a
        device that is down, or no PF; EAGAIN: it was not queried.
    """
    directory = _heartbeat_directory(str(target.address))
    sent = _counter(directory, "queries_sent")
    status = _text(directory, "status")
    now = _counter(directory, "queries_sent")
    if status not in (_HEALTHY, _UNRESPONSIVE):
        raise OSError(errno.EPROTO, f"is {status[:20]!r}", "heartbeat/status")
    if status == _UNRESPONSIVE and now == sent:
        raise OSError(errno.EAGAIN, "it was not queried", "heartbeat/status")
    readings = (
        ("heartbeat_queries", now),
        ("heartbeat_failures", _counter(directory, "queries_failed")),
    )
    fault = "does not respond to its heartbeat" if status == _UNRESPONSIVE else ""
    return fault, readings


def _heartbeat_directory(address: str) -> str:
    """Return ``qat_<device>_<BDF>/heartbeat``; the device is a name of its driver."""
    parent = kernel.current.path(_DEBUGFS)
    for name in sorted(os.listdir(parent)):
        if name.startswith("qat_") and name.endswith(f"_{address}"):
            return os.path.join(parent, name, "heartbeat")
    raise OSError(errno.ENOENT, "it has no heartbeat", "heartbeat")


def _counter(directory: str, name: str) -> int:
    text = _text(directory, name)
    if not text.isdecimal():
        raise OSError(errno.EPROTO, f"is {text[:20]!r}", f"heartbeat/{name}")
    return int(text)


def _text(directory: str, name: str) -> str:
    # The driver returns the zero byte behind the text as well.
    return kernel.current.read(os.path.join(directory, name)).strip("\0 \n")


def _set(call: QatRequest) -> CallResult:
    address, wanted = call.card, call.services
    text, root = qat.services_text(wanted), privileged_conf.last_read()
    pci_functions.check_identity(address, call.identity)
    if call.identity[:2] not in qat.CONFIGURABLE:
        raise CallRefused(Outcome.REFUSED, errno.EOPNOTSUPP, "identity")
    if not root.allows_if(address, lambda tags: tags.qat_services == text):
        raise privileged_conf.denied(text)
    sriov.check_whole(address, call.identity)
    pci_functions.check_without_vfs(address)
    # 1. Finish a change in which a worker was killed.
    _put_back(address)
    before = pci_functions.read(address, qat.SERVICES)
    is_up = pci_functions.read(address, qat.STATE) == _UP
    if is_up and _parts(before) == set(wanted):
        return OK
    # 2. Note the services to restore, before the device stops.
    if not _TEXT.fullmatch(before):
        raise CallRefused(Outcome.NO_EFFECT, 0, qat.SERVICES, before)
    _note(address).create(before)
    try:
        _configure(address, text)
    except (OSError, CallRefused):
        # The first error counts: the note remains if this fails, too.
        with contextlib.suppress(OSError, CallRefused):
            _put_back(address)
        raise
    _note(address).remove()
    return OK


def _parts(text: str) -> set[str]:
    # Their order is not significant.
    return set(text.split(";"))


def _go(address: PciAddress, state: str) -> None:
    # Linux 6.1 refuses to stop a device that is down.
    if pci_functions.read(address, qat.STATE) != state:
        pci_functions.write(address, qat.STATE, state)
    pci_functions.check(address, qat.STATE, state)


def _configure(address: PciAddress, services: str) -> None:
    if _parts(pci_functions.read(address, qat.SERVICES)) != _parts(services):
        # The kernel changes the services only of a device that is down.
        _go(address, _DOWN)
        pci_functions.write(address, qat.SERVICES, services)
        observed = pci_functions.read(address, qat.SERVICES)
        if _parts(observed) != _parts(services):
            raise CallRefused(Outcome.NO_EFFECT, 0, qat.SERVICES, observed)
    _go(address, _UP)


def _note(address: PciAddress) -> StateFile:
    return StateFile(f"{LOCKS}/{address}.qat")


def _put_back(address: PciAddress) -> None:
    _note(address).put_back(partial(_configure, address))
