# SPDX-License-Identifier: Apache-2.0

"""Readings of a PCI function's health: error counters, link, power, temperatures.

Every one of them can be read without privileges:

* ``config``, the configuration space (Documentation/PCI/sysfs-pci.rst). A read that no
  function answers returns all ones, and no function has the vendor FFFFh (PCI Local Bus
  Specification 3.0, 6.1; PCI Express Base Specification, 2.3.2). That of a VF always
  reads as FFFFh (Single Root I/O Virtualization Specification 1.1, 3.4.1.1).
* ``aer_dev_*`` count the errors since the kernel found the function
  (Documentation/ABI/testing/sysfs-bus-pci-devices-aer); a function without Advanced
  Error Reporting has none. They do not count all fatal errors: after one, the kernel
  resets the link.
* ``current_link_*`` and ``max_link_*`` (Documentation/ABI/testing/sysfs-bus-pci).
* ``hwmon`` devices of the function's driver
  (Documentation/hwmon/sysfs-interface.rst). vfio-pci has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from oslo_log import log

from os_acc.exception import DeviceStuck, HostStepFailed
from os_acc.host import attributes
from os_acc.host.answers import answer, is_silent
from os_acc.host.attributes import function_path, pf_of
from os_acc.objects.pci import PciAddress

LOG = log.getLogger(__name__)

#: The fault of a function that has lost its power.
SILENT: Final = "does not answer (its configuration space reads as FFFFh: no power?)"
_TOTAL: Final = re.compile(r"^TOTAL_ERR_[A-Z]+ ([0-9]+)$", re.MULTILINE)
_SPEED: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s")
_INPUT: Final = re.compile(r"(temp[0-9]+)_input")
_HANGS: Final = "does not answer when its health is read"
#: The width in a register whose bits are all set: the function does not answer.
_NO_ANSWER: Final = 63


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorCounters:
    """The PCIe errors of a function since the kernel found it."""

    correctable: int
    nonfatal: int
    fatal: int

    @property
    def uncorrectable(self) -> int:
        """The errors that lost a transaction or the link."""
        return self.nonfatal + self.fatal


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """The PCIe link of a function.

    :ivar speed: in gigatransfers per second; None: unknown.
    :ivar width: the number of lanes.
    """

    speed: float | None
    width: int
    max_speed: float
    max_width: int


@dataclasses.dataclass(frozen=True, slots=True)
class Temperature:
    """One temperature sensor; temperatures are in degrees Celsius.

    :ivar sensor: the name of the hwmon device and of its sensor.
    :ivar critical: the temperature at which the device fails; None: not reported.
    :ivar has_alarm: whether the device itself reports that it is critical.
    """

    sensor: str
    degrees: float
    critical: float | None
    has_alarm: bool


@dataclasses.dataclass(frozen=True, slots=True)
class HealthReadings:
    """The readings of one function; None or empty: not reported.

    :ivar silence: the fault of a function that does not answer, else ''.
    """

    errors: ErrorCounters | None
    link: Link | None
    temperatures: tuple[Temperature, ...]
    silence: str = ""

    def fault(self, max_uncorrectable: int) -> str:
        """Return the reason why the function must not be attached; '' if healthy.

        :param max_uncorrectable: uncorrectable errors that are tolerated; -1: any
            number.
        """
        if self.silence:
            return self.silence
        if self.link is not None and self.link.width == _NO_ANSWER:
            return "has no PCIe link"
        for each in self.temperatures:
            reached = each.critical is not None and each.degrees >= each.critical
            if reached or each.has_alarm:
                return f"is too hot ({each.sensor})"
        if self.errors is not None and 0 <= max_uncorrectable < (
            self.errors.uncorrectable
        ):
            return "has had too many uncorrectable PCIe errors"
        return ""


def read(root: str, address: PciAddress, *, is_held: bool = False) -> HealthReadings:
    """Return the readings of a function; a reading that fails is missing.

    :param root: the directory with ``sys``.
    :param is_held: whether a guest has the function. A read of the configuration space
        does not disturb the guest; further readings ask a driver that it does not have.
    """
    place = function_path(root, address)
    # A read would wake a function that sleeps.
    if not _is_suspended(place) and not _answers(place):
        return HealthReadings(None, None, (), SILENT)
    if is_held:
        return HealthReadings(None, None, ())
    return HealthReadings(_errors(place), _link(place), tuple(_temperatures(place)))


def answers(root: str, address: PciAddress) -> bool:
    """Return whether a function answers a read of its configuration space.

    A function that sleeps is woken up. The answer of a VF is that of its PF.
    """
    return _answers(function_path(root, pf_of(root, address)))


def faults(
    root: str,
    functions: Iterable[PciAddress],
    max_uncorrectable: int,
    held: Iterable[PciAddress] = (),
    before: Mapping[PciAddress, str] = MappingProxyType({}),
) -> dict[PciAddress, str]:
    """Return the fault of each function that has one; a VF has those of its PF.

    :param max_uncorrectable: see :meth:`HealthReadings.fault`.
    :param held: functions that guests have; see :func:`read`.
    :param before: the faults of those that do not answer in time.
    """
    free = {address: pf_of(root, address) for address in functions}
    sources = free | {address: pf_of(root, address) for address in held}
    held_only = set(sources.values()) - set(free.values())
    readings = read_each(root, sources.values(), held_only)
    found = {each: it.fault(max_uncorrectable) for each, it in readings.items()}
    now = {each: found.get(at, before.get(each)) for each, at in sources.items()}
    return {each: fault for each, fault in now.items() if fault}


def read_each(
    root: str, functions: Iterable[PciAddress], held: Container[PciAddress] = ()
) -> dict[PciAddress, HealthReadings]:
    """Return the readings of functions, in a bounded time (:func:`.answer`).

    A driver may ask its device for a reading, and the device may not answer: it is then
    missing, and faulty if it did not answer before, either.

    :param held: functions that only guests have; see :func:`read`.
    """
    found = {}
    for each in sorted(set(functions)):
        was_silent = is_silent(root, each)
        try:
            found[each] = answer(root, each, read, root, each, is_held=each in held)
        except (HostStepFailed, DeviceStuck) as error:
            LOG.warning("cannot read the health of %s: %s", each, error)
            if was_silent:
                found[each] = HealthReadings(None, None, (), _HANGS)
    return found


def _answers(place: str) -> bool:
    try:
        fd = os.open(os.path.join(place, "config"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return os.read(fd, 2) != b"\xff\xff"
    except OSError:
        return True
    finally:
        os.close(fd)


def _errors(place: str) -> ErrorCounters | None:
    counts = []
    for name in ("correctable", "nonfatal", "fatal"):
        text = _read(os.path.join(place, f"aer_dev_{name}"))
        total = _TOTAL.search(text) if text else None
        if total is None:
            return None
        counts.append(int(total[1]))
    return ErrorCounters(*counts)


def _link(place: str) -> Link | None:
    # A function that sleeps does not answer: its registers read as all ones.
    if _read(os.path.join(place, "power_state")) != "D0" or _is_suspended(place):
        return None
    width = _number(os.path.join(place, "current_link_width"))
    max_width = _number(os.path.join(place, "max_link_width"))
    max_speed = _speed(os.path.join(place, "max_link_speed"))
    # An endpoint in the root complex has no link, and its maximum is unknown (255 at
    # Unknown). A VF reports the maximum of its PF, but no link of its own: 0.
    if not width or not max_width or max_speed is None:
        return None
    speed = _speed(os.path.join(place, "current_link_speed"))
    return Link(speed, width, max_speed, max_width)


def _is_suspended(place: str) -> bool:
    """Return whether a function or the port above it sleeps at present."""
    above = os.path.dirname(os.path.realpath(place))
    return "suspended" in {
        _read(os.path.join(each, "power/runtime_status")) for each in (place, above)
    }


def _temperatures(place: str) -> Iterator[Temperature]:
    for device in _sensors(place):
        title = _read(os.path.join(device, "name")) or os.path.basename(device)
        for name in _names(device):
            if (match := _INPUT.fullmatch(name)) is None:
                continue
            degrees = _number(os.path.join(device, name))
            if degrees is None:
                continue
            sensor = os.path.join(device, match[1])
            critical = _number(f"{sensor}_crit")
            yield Temperature(
                f"{title} {match[1]}",
                degrees / 1000,
                critical / 1000 if critical is not None and critical > 0 else None,
                _number(f"{sensor}_crit_alarm") == 1,
            )


def _sensors(place: str) -> Iterator[str]:
    """Yield the hwmon devices of a function, and of the NVMe controller on it."""
    for name in _names(os.path.join(place, "hwmon")):
        yield os.path.join(place, "hwmon", name)
    for controller in _names(os.path.join(place, "nvme")):
        below = os.path.join(place, "nvme", controller)
        for name in _names(below):
            if name.startswith("hwmon"):
                yield os.path.join(below, name)


def _speed(path: str) -> float | None:
    match = _SPEED.match(_read(path) or "")
    return float(match[1]) if match else None


def _number(path: str) -> int | None:
    text = _read(path)
    if text is None:
        return None
    with contextlib.suppress(HostStepFailed):
        return attributes.number(text, path)
    return None


# A sensor of a device that sleeps, or is removed, answers with an error. None of these
# functions raises one.


def _names(path: str) -> list[str]:
    with contextlib.suppress(HostStepFailed):
        return attributes.names(path)
    return []


def _read(path: str) -> str | None:
    with contextlib.suppress(HostStepFailed):
        return attributes.read_text(path)
    return None
