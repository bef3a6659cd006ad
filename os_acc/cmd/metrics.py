# SPDX-License-Identifier: Apache-2.0

"""``os-acc metrics``: the state of this host's accelerators, for monitoring."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator

from os_acc.cmd import base
from os_acc.cmd.openmetrics import MetricFamily, MetricType, Sample, exposition
from os_acc.host import health
from os_acc.objects.device import Provider, RejectReason, pci_functions_of
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.placement import capacity
from os_acc.service import HostInspection
from os_acc.store import health_record
from os_acc.store.health_record import HealthRecord

_GAUGE, _COUNTER = MetricType.GAUGE, MetricType.COUNTER


class Metrics(base.Acting):
    """Print the state of this host's accelerators in the OpenMetrics text format.

    Changes nothing, and needs no privileged helper. For node_exporter, write it to a
    file of the textfile collector.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        look = self.look()
        self.remark_if_none_named()
        providers = look.inventory.providers
        root = self.os_acc.root
        # A VF has the link and the sensors of its PF.
        sources = {
            health.source(root, each) for each in pci_functions_of(providers.values())
        }
        readings = health.read_in_time(root, sources)
        recorded = health_record.recorded(self.settings.state_path, root)
        families = (*_families(look), *_readings(readings), _recorded(recorded))
        self.app.stdout.write(exposition(families))
        return 0


def _families(look: HostInspection) -> Iterator[MetricFamily]:
    """Yield the metrics of units, leases, devices and plugins."""
    providers = look.inventory.providers
    leases = look.recorded.leases
    used = Counter(each.provider for each in leases if not each.erasure)
    found = capacity.capacities(providers.values(), look.recorded)
    units = [
        (_labels(each, name), amounts, used[each.uuid])
        for each in found
        for name, amounts in each.units.items()
    ]
    yield _family(
        "os_acc_units",
        _GAUGE,
        "Accelerators of a resource provider, as in its inventory.",
        (Sample(each.total, labels) for labels, each, _ in units),
    )
    yield _family(
        "os_acc_reserved_units",
        _GAUGE,
        "Accelerators that are out of order or being erased, or whose release failed.",
        (Sample(each.reserved, labels) for labels, each, _ in units),
    )
    yield _family(
        "os_acc_leased_units",
        _GAUGE,
        "Accelerators of a resource provider that consumers hold.",
        (Sample(number, labels) for labels, _, number in units),
    )
    states = Counter(lease.state for lease in leases)
    yield _family(
        "os_acc_leases",
        _GAUGE,
        "Leases by state; a quarantined one waits for an operator.",
        (Sample(states[each], {"state": each.value}) for each in LeaseState),
    )
    yield _family(
        "os_acc_erased_ratio",
        _GAUGE,
        "The part of a device that is erased after its last guest, from 0 to 1.",
        (
            Sample(each.erased, {"address": str(each.address)})
            for each in leases
            if each.erasure
        ),
        unit="ratio",
    )
    yield _family(
        "os_acc_faulty",
        _GAUGE,
        "Whether a device must not be attached at present (1), or may be (0).",
        _faulty(providers.values()),
    )
    reasons = Counter(each.reason for each in look.inventory.refused)
    yield _family(
        "os_acc_rejected_functions",
        _GAUGE,
        "Functions named in device_spec that are not offered, by reason.",
        (Sample(reasons[each], {"reason": each.name}) for each in RejectReason),
    )
    yield _family(
        "os_acc_failed_plugins",
        _GAUGE,
        "Plugins that cannot be used; each has the value 1.",
        (Sample(1, {"plugin": each.name}) for each in look.inventory.set_aside),
    )


def _labels(units: capacity.Capacity, resource_class: str) -> dict[str, str]:
    name = units.provider.name if units.provider else units.uuid
    return {"provider": name, "resource_class": resource_class}


def _faulty(providers: Iterable[Provider]) -> Iterator[Sample]:
    for provider in providers:
        for handle in provider.device.handles:
            labels = {"address": str(handle.address), "provider": provider.name}
            yield Sample(int(bool(handle.fault)), labels)


def _readings(
    readings: dict[PciAddress, health.HealthReadings],
) -> Iterator[MetricFamily]:
    """Yield the metrics of functions that report their health."""
    yield _family(
        "os_acc_pcie_errors",
        _COUNTER,
        "PCIe errors since the kernel found the function, by severity.",
        (
            Sample(number, {"address": str(address), "severity": severity})
            for address, each in readings.items()
            if each.errors is not None
            for severity, number in (
                ("correctable", each.errors.correctable),
                ("nonfatal", each.errors.nonfatal),
                ("fatal", each.errors.fatal),
            )
        ),
    )
    links = {
        str(address): each.link
        for address, each in readings.items()
        if each.link is not None
    }
    yield _family(
        "os_acc_pcie_link_lanes",
        _GAUGE,
        "Lanes of the PCIe link: those in use, and the most that the function has.",
        (
            Sample(number, {"address": address, "limit": limit})
            for address, link in links.items()
            for limit, number in (("current", link.width), ("max", link.max_width))
        ),
    )
    yield _family(
        "os_acc_pcie_link_transfers_per_second",
        _GAUGE,
        "Transfers per second and lane of the PCIe link, in use and at most.",
        (
            Sample(speed * 1e9, {"address": address, "limit": limit})
            for address, link in links.items()
            for limit, speed in (("current", link.speed), ("max", link.max_speed))
            if speed is not None
        ),
    )
    yield _family(
        "os_acc_temperature_celsius",
        _GAUGE,
        "Temperature that the driver of a function reports.",
        (
            Sample(each.degrees, {"address": str(address), "sensor": each.sensor})
            for address, found in readings.items()
            for each in found.temperatures
        ),
        unit="celsius",
    )


def _recorded(found: HealthRecord) -> MetricFamily:
    """Return the readings of the plugins' health steps, which a service has made."""
    return _family(
        "os_acc_health",
        _GAUGE,
        "Reading of a device's health that a service has made as root, by its name.",
        (
            Sample(value, {"address": str(address), "reading": name})
            for address, each in sorted(found.readings.items())
            for name, value in sorted(each.items())
        ),
    )


def _family(
    name: str, kind: MetricType, text: str, samples: Iterable[Sample], unit: str = ""
) -> MetricFamily:
    return MetricFamily(name, kind, text, tuple(samples), unit)
