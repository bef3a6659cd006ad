# SPDX-License-Identifier: Apache-2.0

"""``os-acc metrics``: the state of this host's accelerators, for monitoring.

The text format is that of Prometheus, version 0.0.4, which the textfile collector of
node_exporter reads; it does not read OpenMetrics, whose counters have other names:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from os_acc import exception
from os_acc.cmd import base
from os_acc.cmd.device_states import shown_state
from os_acc.host import attributes, health
from os_acc.inspection import HostInspection
from os_acc.objects.device import RejectReason, pci_functions_of
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.placement import capacity
from os_acc.store import state_files

#: A value, and the labels that distinguish it within its metric.
Sample: TypeAlias = tuple[float, dict[str, str]]
#: A metric: its name, which ends with its unit, or with _total if it is a counter;
#: the description; and the samples.
Metric: TypeAlias = tuple[str, str, list[Sample]]


class Metrics(base.Acting):
    """Print the state of this host's accelerators in the text format of Prometheus.

    Changes nothing, and needs no privileged helper. For node_exporter, write it to a
    file of the textfile collector. If the state cannot be read, os_acc_up is 0 and the
    only metric: the file must not keep the values of better days.
    """

    def configure(self) -> None:
        """Read nothing yet: without a configuration, os_acc_up is 0."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        metrics: Sequence[Metric] = ()
        try:
            self.os_acc.configure()
            metrics = self._metrics()
        except exception.OsAccError as error:
            self._print_error(error)
        text = "Whether the state of os_acc on this host can be read."
        up: Metric = "os_acc_up", text, [(int(bool(metrics)), {})]
        self.app.stdout.write(exposition((up, *metrics)))

    def _metrics(self) -> Sequence[Metric]:
        look = self.look()
        self.remark_if_none_named()
        providers = look.inventory.providers
        root = self.os_acc.root
        # A VF has the link and the sensors of its PF.
        sources = {
            attributes.pf_of(root, each)
            for each in pci_functions_of(providers.values())
        }
        readings = health.read_each(root, sources)
        path = self.settings.state_path
        return (*_states(look), *_readings(readings), *_of_services(path, root))


def _states(look: HostInspection) -> Iterator[Metric]:
    """Yield the metrics of units, leases, devices and plugins."""
    providers, leases = look.inventory.providers.values(), look.recorded.leases
    used = Counter(each.provider for each in leases if not each.erasure)
    states = Counter(lease.state for lease in leases)
    reasons = Counter(each.reason for each in look.inventory.refused)
    found = []
    for each in capacity.capacities(providers, look.recorded):
        name = each.provider.name if each.provider else each.uuid
        for resource_class, units in each.units.items():
            labels = {"provider": name, "resource_class": resource_class}
            found.append((units, used[each.uuid], labels))
    yield (
        "os_acc_units",
        "Accelerators of a resource provider, as in its inventory.",
        [(units.total, labels) for units, _leased, labels in found],
    )
    yield (
        "os_acc_reserved_units",
        "Accelerators that are out of order or being erased, or whose release failed.",
        [(units.reserved, labels) for units, _leased, labels in found],
    )
    yield (
        "os_acc_leased_units",
        "Accelerators of a resource provider that consumers hold.",
        [(leased, labels) for _units, leased, labels in found],
    )
    yield (
        "os_acc_leases",
        "Leases by state; a quarantined one waits for an operator.",
        [(states[each], {"state": shown_state(each.value)}) for each in LeaseState],
    )
    yield (
        "os_acc_erased_ratio",
        "The part of a device that is erased after its last guest, from 0 to 1.",
        [
            (each.erased, {"address": str(each.address)})
            for each in leases
            if each.erasure
        ],
    )
    yield (
        "os_acc_faulty",
        "Whether a device must not be attached at present (1), or may be (0).",
        [
            (bool(each.fault), {"address": str(each.address), "provider": owner.name})
            for owner in providers
            for each in owner.device.handles
        ],
    )
    yield (
        "os_acc_rejected_functions",
        "Functions named in device_spec that are not offered, by reason.",
        [(reasons[each], {"reason": each.name}) for each in RejectReason],
    )
    yield (
        "os_acc_failed_plugins",
        "Plugins that cannot be used; each has the value 1.",
        [(1, {"plugin": each.name}) for each in look.inventory.set_aside],
    )


def _readings(found: dict[PciAddress, health.HealthReadings]) -> Iterator[Metric]:
    """Yield the metrics of functions that report their health."""
    links = [
        (link, {"address": str(at), "limit": limit})
        for at, each in found.items()
        if each.link is not None
        for limit, link in (
            ("current", (each.link.width, each.link.speed)),
            ("max", (each.link.max_width, each.link.max_speed)),
        )
    ]
    yield (
        "os_acc_pcie_errors_total",
        "PCIe errors since the kernel found the function, by severity.",
        [
            (count, {"address": str(at), "severity": severity})
            for at, each in found.items()
            if each.errors is not None
            for severity, count in dataclasses.asdict(each.errors).items()
        ],
    )
    yield (
        "os_acc_pcie_link_lanes",
        "Lanes of the PCIe link: those in use, and the most that the function has.",
        [(width, labels) for (width, _speed), labels in links],
    )
    yield (
        "os_acc_pcie_link_transfers_per_second",
        "Transfers per second and lane of the PCIe link, in use and at most.",
        [(speed * 1e9, at) for (_width, speed), at in links if speed is not None],
    )
    yield (
        "os_acc_temperature_celsius",
        "Temperature that the driver of a function reports.",
        [
            (each.degrees, {"address": str(at), "sensor": each.sensor})
            for at, readings in found.items()
            for each in readings.temperatures
        ],
    )


def _of_services(state_path: str, root: str) -> Iterator[Metric]:
    """Yield what services on this host have recorded."""
    readings = state_files.recorded_health(state_path, root).readings
    yield (
        "os_acc_health",
        "Reading of a device's health that a service has made as root, by its name.",
        [
            (value, {"address": str(address), "reading": name})
            for address, each in sorted(readings.items())
            for name, value in sorted(each.items())
        ],
    )
    yield (
        "os_acc_unforeseen_errors_total",
        "Errors that retries and reconciliation do not foresee; see the service's log.",
        [(state_files.counted_errors(state_path), {})],
    )


def exposition(metrics: Iterable[Metric]) -> str:
    """Return the text of metrics; those without a sample are left out."""
    lines = (line for each in metrics if each[2] for line in _lines(*each))
    return "".join(f"{line}\n" for line in lines)


def _lines(name: str, text: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {_escaped(text)}"
    yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    for value, labels in samples:
        pairs = ",".join(f"{key}={_quoted(each)}" for key, each in labels.items())
        yield f"{name}{{{pairs}}} {value:.17g}"


def _quoted(text: str) -> str:
    return '"{}"'.format(_escaped(text).replace('"', '\\"'))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
