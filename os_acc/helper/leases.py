# SPDX-License-Identifier: Apache-2.0

"""A lease as plain arguments of the privileged helper's calls."""

from __future__ import annotations

from os_acc.objects.lease import Lease


def targets(lease: Lease) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return the functions of a lease with their identities."""
    return tuple((prior.address.parts, prior.identity.numbers) for prior in lease.prior)


def bindings(lease: Lease) -> tuple[tuple[object, ...], ...]:
    """Return the targets of :func:`binding.take`, each with its driver."""
    drivers = map(lease.driver_of, lease.functions)
    return tuple(
        (*each, driver) for each, driver in zip(targets(lease), drivers, strict=True)
    )


def plugins(lease: Lease) -> tuple[str, str]:
    """Return the plugins that have to erase and to release a device; '': none."""
    return lease.plugin if lease.owes_erase else "", releaser(lease)


def releaser(lease: Lease) -> str:
    """Return the plugin that has to release a lease's device or slot; '': none."""
    return lease.plugin if lease.owes_release else ""
