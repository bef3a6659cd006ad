# SPDX-License-Identifier: Apache-2.0

"""Stores as SQL: that of this version, and those that released versions wrote.

``python -m tests.unit.store.recorded_store VERSION`` records the store of this version.
Use it once for each release; a recorded file of a release is not changed any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sqlite3
import sys
import tempfile
from pathlib import Path

from os_acc.objects.lease import LeaseState
from os_acc.store import schema
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from os_acc.testing.device_specs import NvmeSpec
from os_acc.testing.mdevs import mtty

RECORDED = Path(__file__).parent / "recorded"
#: The version that is not released yet.
THIS = "this"
MDEVS = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'
GPU = "0000:17:00.0"
DRIVE, ERASED = "0000:d9:00.0", "0000:da:00.0"
#: The devices that each instance has in a recorded store, as providers name them. Its
#: plugin erases the drive.
HELD = {1: GPU, 2: "mtty/mtty-1", 4: DRIVE}
#: The instance whose device could not be returned.
QUARANTINED = 3
LEFT = "0000:18:00.0"
#: The instance whose device is being erased.
FORMER = 5


def spec() -> HostSpec:
    """Return a host with two GPUs and their audio functions, two drives, and mtty."""
    gpus = (*hosts.gpu("0000:17"), *hosts.gpu("0000:18"))
    drives = (
        dataclasses.replace(
            hosts.nvme_disk(address.removesuffix(":00.0"), number), nvme=NvmeSpec()
        )
        for number, address in enumerate((DRIVE, ERASED))
    )
    return HostSpec((*gpus, *drives), mdev_parents=(mtty(),))


def options() -> dict[str, object]:
    """Return the options of that host."""
    return {"device_spec": ['{"address": "*:*:*.*"}', MDEVS]}


def plug(host: TestHost, number: int, device: str) -> None:
    """Plug a device by its address, or by parent and type."""
    provider = next(
        each
        for each in host.manager.providers()
        if str(each.device.address).startswith(device.partition("/")[0])
    )
    selected, specs = request(provider)
    host.manager.plug(instance(number), selected, specs)


def dump(file: Path) -> str:
    """Return a store as SQL, header included."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        header = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return "\n".join([*header, *connection.iterdump()]) + "\n"


def versions() -> list[str]:
    """Return the versions whose stores are read."""
    return [*sorted(path.stem for path in RECORDED.glob("*.sql")), THIS]


def text_of(version: str) -> str:
    """Return the store of a version, as SQL."""
    return _this() if version == THIS else (RECORDED / f"{version}.sql").read_text()


def load(text: str, state_path: str) -> None:
    """Create a store below a state directory."""
    directory = Path(state_path)
    directory.mkdir(exist_ok=True)
    file = directory / "os_acc.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.create_function("row_digest", -1, schema.row_digest)
        connection.executescript(text)


@functools.cache
def _this() -> str:
    """Return the store of this version."""
    with (
        tempfile.TemporaryDirectory() as place,
        TestHost(place, spec(), **options()) as host,
    ):
        for number, device in HELD.items():
            plug(host, number, device)
        plug(host, QUARANTINED, LEFT)
        plug(host, FORMER, ERASED)
        host.unplug(FORMER)
        store = host.manager.store
        (lease,) = store.leases(str(instance(QUARANTINED)["uuid"]))
        broken = {"state": LeaseState.QUARANTINED, "reason": "its driver failed"}
        store.replace([dataclasses.replace(lease, **broken)])
        return dump(Path(host.state_path, "os_acc.sqlite"))


def main(version: str) -> None:
    """Record the store of this version."""
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{version}.sql").write_text(_this())


if __name__ == "__main__":
    main(sys.argv[1])
