# SPDX-License-Identifier: Apache-2.0

"""A lease as plain arguments of the privileged helper's calls."""

from __future__ import annotations

from os_acc.objects.lease import Lease
from os_acc.objects.vfio_driver import VFIO_PCI


def targets(lease: Lease) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return the functions of a lease with their identities."""
    return tuple((prior.address.parts, prior.identity.numbers) for prior in lease.prior)


def bindings(lease: Lease) -> tuple[tuple[object, ...], ...]:
    """Return the targets of :func:`binding.take`, each with its driver if it differs.

    A helper that was started before an upgrade knows vfio-pci alone.
    """
    return tuple(
        each if driver == VFIO_PCI else (*each, driver)
        for each, driver in zip(
            targets(lease), map(lease.driver_of, lease.functions), strict=True
        )
    )


def debt(lease: Lease) -> tuple[str, ...]:
    """Return the plugins that have to erase and to release a lease's device.

    A helper that was started before an upgrade knows fewer arguments.
    """
    eraser = lease.plugin if lease.owes_erase else ""
    if lease.owes_release:
        return eraser, lease.plugin
    return (eraser,) if eraser else ()


def slot_debt(lease: Lease) -> tuple[str, ...]:
    """Return the plugin that has to release a lease's slot; see :func:`debt`."""
    return (lease.plugin,) if lease.owes_release else ()
