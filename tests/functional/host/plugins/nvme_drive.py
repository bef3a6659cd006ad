# SPDX-License-Identifier: Apache-2.0

"""A host with one NVMe drive, for the tests of its plugin."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from os_acc.objects.lease import Lease
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.device_specs import NvmeSpec

DRIVE = "0000:d9:00.0"
DATA = b"data of a guest." * 512


def host_with(directory: Path, spec: NvmeSpec, **options: Any) -> TestHost:
    drive = dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=spec)
    return TestHost(directory, HostSpec((drive,)), **options)


def advance(host: TestHost) -> None:
    """Continue all erasures once."""
    for attempt in host.manager.retrier.continue_erasures():
        attempt.result(60)


def lease_of(host: TestHost) -> Lease:
    """Return the only lease of a host."""
    (found,) = host.manager.store.leases()
    return found
