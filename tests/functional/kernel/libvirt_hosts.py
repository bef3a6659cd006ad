# SPDX-License-Identifier: Apache-2.0

"""Two hosts of libvirt in one machine, between which ``virsh migrate`` moves a guest.

Each is a libvirtd of an ordinary user (``qemu:///session``) with a UUID and folders of
its own: libvirt refuses to migrate to the host with its own UUID.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import sysfs
from .accounts import OrdinaryUser
from .moving_guest import SerialPort

#: Seconds in which libvirtd starts, or answers, in an emulation within another.
_DEADLINE = 300.0
_NAME, _EMULATOR = "guest", "qemu-system-x86_64"
#: libvirt's alias, which is QEMU's id.
_DEVICE = "hostdev0"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
#: mtty tracks no dirty pages: otherwise QEMU refuses to move it, as by default. Without
#: iommufd, the kernel reports none of a device, and a move that needs them fails.
_OVERRIDE = f"""
<qemu:override xmlns:qemu="{_QEMU}"><qemu:device alias="{_DEVICE}"><qemu:frontend>
<qemu:property name="enable-migration" type="string" value="on"/>
<qemu:property name="x-device-dirty-page-tracking" type="string" value="off"/>
</qemu:frontend></qemu:device></qemu:override>
"""
_PLACE = '<address type="pci" domain="0" bus="0" slot="0x10" function="0"/>'
_GUEST = """
<domain type="qemu">
  <name>guest</name><uuid>{uuid}</uuid><memory unit="MiB">64</memory>
  <os><type arch="x86_64" machine="q35">hvm</type></os><features><acpi/></features>
  <devices><emulator>{emulator}</emulator></devices>
</domain>
"""


class LibvirtHost:
    """A libvirtd, and the guest that it runs.

    :param name: of its folder, short: the path of a socket has a limit.
    """

    def __init__(self, user: OrdinaryUser, name: str) -> None:
        self._user = user
        self.place = Path("/run", f"libvirt-{name}")
        folder = self.place / "libvirt"
        folder.mkdir(parents=True)
        host = f'host_uuid = "{uuid.uuid4()}"\n'
        folder.joinpath("libvirtd.conf").write_text(host)
        folder.joinpath("qemu.conf").write_text('stdio_handler = "file"\n')
        for each in (self.place, folder):
            os.chown(each, user.uid, user.gid)
        socket = folder / "libvirt-sock"
        self.uri = f"qemu+unix:///session?socket={socket}"
        kinds = ("RUNTIME_DIR", "CONFIG_HOME", "CACHE_HOME", "DATA_HOME")
        names = ("HOME", *(f"XDG_{each}" for each in kinds))
        places = [f"{each}={self.place}" for each in names]
        # VFIO_MAP_DMA locks all of the guest's memory; an ordinary libvirtd cannot
        # raise the limit.
        limit = ["prlimit", "--memlock=unlimited:unlimited"]
        daemon = user.command(["env", *places, "/usr/sbin/libvirtd"])
        with open(self.place / "log", "wb") as log:
            self._daemon = subprocess.Popen([*limit, *daemon], stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE
        while not socket.exists():
            assert self._daemon.poll() is None, self.log()
            assert time.monotonic() < deadline, "libvirtd has not started"
            time.sleep(0.2)

    def log(self) -> str:
        """Return what the daemon has printed, and QEMU under it."""
        logs = [self.place / "log", *self.place.rglob("log/*.log")]
        return "\n".join(each.read_text(errors="replace") for each in logs)

    def virsh(self, *arguments: str) -> str:
        """Run virsh, and return its output.

        :raises AssertionError: it failed.
        """
        ran = self._user.run("virsh", "--quiet", f"--connect={self.uri}", *arguments)
        assert ran.returncode == 0, f"{ran.stderr}\n{self.log()}"
        return ran.stdout

    def close(self) -> None:
        """End the daemon, and the guest that it runs."""
        if _NAME in self.virsh("list", "--name").split():
            self.virsh("destroy", _NAME)
        self._daemon.terminate()
        self._daemon.wait(_DEADLINE)
        shutil.rmtree(self.place)


class LibvirtGuest:
    """A guest of libvirt with a mediated device, and the hosts between which it moves.

    :param definition: by Nova; its ``<hostdev>`` is taken.
    :ivar port: its device.
    """

    def __init__(self, user: OrdinaryUser, definition: str) -> None:
        self._user = user
        with contextlib.ExitStack() as hosts:
            self._hosts = [
                hosts.enter_context(contextlib.closing(LibvirtHost(user, name)))
                for name in ("source", "target")
            ]
            self._start(definition)
            self._closing = hosts.pop_all()

    def _start(self, definition: str) -> None:
        found = ElementTree.fromstring(definition).findall("devices/hostdev")
        self._own(each.find("source/address").attrib["uuid"] for each in found)
        for each in found:
            # On the root bus: the firmware enables the I/O ports of BAR 0 there.
            each.append(ElementTree.fromstring(_PLACE))
        own = _GUEST.format(uuid=uuid.uuid4(), emulator=shutil.which(_EMULATOR))
        guest = ElementTree.fromstring(own)
        guest.find("devices").extend(found)
        guest.append(ElementTree.fromstring(_OVERRIDE))
        self._hosts[0].virsh("create", self._written(guest))
        self.port = SerialPort(_LibvirtMonitor(self._hosts[0]), _DEVICE)

    def migrate(self, pairs: Mapping[str, str]) -> None:
        """Move the guest with virsh, which gets the definition for the target."""
        self._own(pairs.values())
        source, target = self._hosts
        text = source.virsh("dumpxml", "--migratable", _NAME)
        for at, to in pairs.items():
            assert text.count(at) == 1
            text = text.replace(at, to)
        definition = self._written(ElementTree.fromstring(text))
        route = ("--migrateuri", "tcp://127.0.0.1:49152", "--xml", definition)
        source.virsh("migrate", "--live", *route, _NAME, target.uri)
        assert source.virsh("list", "--all", "--name").split() == []
        assert target.virsh("domstate", _NAME).split() == ["running"]
        self.port = SerialPort(_LibvirtMonitor(target), _DEVICE)

    def close(self) -> None:
        self._closing.close()

    def _own(self, names: Iterable[str]) -> None:
        # This libvirt has no iommufd.
        for each in names:
            os.chown(sysfs.vfio_node(each), self._user.uid, self._user.gid)

    def _written(self, definition: ElementTree.Element) -> str:
        path = self._hosts[0].place / f"{uuid.uuid4()}.xml"
        path.write_bytes(ElementTree.tostring(definition))
        path.chmod(0o644)
        return str(path)


class _LibvirtMonitor:
    """The monitor of a guest's QEMU, through libvirt."""

    def __init__(self, host: LibvirtHost) -> None:
        self._host = host

    def execute(self, command: str, **arguments: object) -> Any:
        message = json.dumps({"execute": command, "arguments": arguments})
        answer = json.loads(self._host.virsh("qemu-monitor-command", _NAME, message))
        return answer["return"]
