# SPDX-License-Identifier: Apache-2.0

"""``os-acc host record``: this host as a simulated one, for tests of plugins."""

from __future__ import annotations

import argparse

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.host import pci
from os_acc.objects.pci import PciAddress
from os_acc.testing import host_recorder, records


class RecordHost(base.Acting):
    """Print a record of this host's PCI functions, for tests on a simulated host.

    Reads sysfs and procfs, and changes nothing. The record has no serial numbers, no
    addresses of interfaces and no mount points.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--device",
            **arguments.FUNCTION,
            action="append",
            default=[],
            help="record the attributes that the driver of this function makes, too; "
            "may be given several times. Name no function whose driver acts when an "
            "attribute is read",
        )
        parser.add_argument(
            "--serial",
            action="store_true",
            help="record serial numbers and other names of single devices",
        )

    def configure(self) -> None:
        # A vendor's host has no configuration of os_acc.
        if self.os_acc.options.simulated is not None:
            super().configure()

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        root = self.os_acc.root
        named: list[PciAddress] = parsed_args.device
        for address in named:
            if pci.read_function(root, address) is None:
                raise exception.NotFound(
                    f"{address} is not on this host",
                    kind=exception.ObjectKind.DEVICE,
                    hint="see the addresses with: lspci -D",
                )
        host = host_recorder.record_host(root, named, identifying=parsed_args.serial)
        self.app.stdout.write(records.as_json(host))
