# SPDX-License-Identifier: Apache-2.0

"""A cell of Nova: RabbitMQ, a database, nova-conductor, libvirt, and nova-compute.

Each is a process on loopback, with its files in directories of the test. libvirt is the
daemon of an ordinary user (``qemu:///session``): it needs no configuration of the host,
and is independent of the host's own.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.functional.openstack.cloud import Cloud
from tests.functional.openstack.daemon import Daemon
from tests.functional.openstack.service import free_port

BINARIES = Path(sys.executable).parent
#: Debian's program, without its wrapper, which changes the user.
_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
#: Debian's Python module; it needs the library that belongs to Debian's libvirtd.
_MODULE = Path("/usr/lib/python3/dist-packages")
_MODULE_FILES = ("libvirt.py", "libvirtmod.*.so")
#: The user of libvirtd if the tests run as root: root's libvirtd is the host's.
_USER = "nobody"
#: Characters of each log that help to find the cause of a failure.
_LOG_LENGTH = 8000
Options = Mapping[str, Mapping[str, object]]


class NovaCell:
    """The running processes of a cell.

    :param home: the directory of the files.
    :param cloud: its Keystone and Placement run.
    """

    def __init__(self, home: Path, cloud: Cloud) -> None:
        self.home = home
        self._cloud = cloud
        self._broker_port, self._epmd_port = free_port(), free_port()
        self._processes = ExitStack()

    @property
    def compute_node(self) -> str:
        """Return the UUID of the compute node, once nova-compute has selected it."""
        file = self.home / "state/compute_id"
        return file.read_text().strip() if file.exists() else ""

    def logs(self) -> str:
        """Return the ends of the logs of all processes, each after its name."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-_LOG_LENGTH:]}"
            for log in sorted(self.home.glob("*.log"))
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run everything that nova-compute needs."""
        with self._processes:
            place = Path(
                self._processes.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
            )
            (self.home / "state/instances").mkdir(parents=True)
            self._connection = f"qemu+unix:///session?socket={self._libvirt(place)}"
            broker = self._broker()
            self._create_database()
            broker.wait(self._broker_answers)
            options = {"conductor": {"workers": 1}, **self._database()}
            self._run("nova-conductor", *self._nova_conf("conductor", options))
            yield

    def nova_compute(self, program: str) -> Daemon:
        """Start nova-compute with the driver of os_acc.

        :param program: the console script.
        """
        options = {
            "DEFAULT": {"compute_driver": "os_acc.LibvirtDriver"},
            "libvirt": {"virt_type": "qemu", "connection_uri": self._connection},
            "os_acc": {"state_path": self.home / "os_acc"},
        }
        modules = self.home / "modules"
        modules.mkdir()
        for pattern in _MODULE_FILES:
            (found,) = _MODULE.glob(pattern)
            (modules / found.name).symlink_to(found)
        return self._run(
            program, *self._nova_conf("compute", options), PYTHONPATH=str(modules)
        )

    # -- the processes ------------------------------------------------------------

    def _run(self, name: str, *arguments: str, **environment: str) -> Daemon:
        return self._start(name, [BINARIES / name, *arguments], **environment)

    def _start(
        self, name: str, command: Sequence[str | Path], **environment: str
    ) -> Daemon:
        daemon = Daemon(name, command, self.home / f"{name}.log", environment)
        self._processes.callback(daemon.end)
        return daemon

    def _broker(self) -> Daemon:
        """Start RabbitMQ, after Erlang's name server, which would outlive it."""
        epmd = {"ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._start("epmd", ["epmd"], **epmd)
        home = self.home / "rabbitmq"
        home.mkdir()
        return self._start(
            "rabbitmq",
            [_RABBITMQ],
            **epmd,
            HOME=str(home),
            RABBITMQ_NODENAME=f"os-acc-{self._broker_port}@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(self._broker_port),
            RABBITMQ_DIST_PORT=str(free_port()),
            RABBITMQ_MNESIA_BASE=str(home),
            RABBITMQ_LOG_BASE=str(home),
            RABBITMQ_PID_FILE=str(home / "pid"),
            # None of the host's files is read.
            RABBITMQ_CONF_ENV_FILE=str(home / "environment"),
            RABBITMQ_CONFIG_FILE=str(home / "configuration"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(home / "advanced"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(home / "plugins"),
        )

    def _broker_answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._broker_port), 10.0).close()
        except OSError:
            return False
        return True

    def _libvirt(self, place: Path) -> Path:
        """Start libvirtd; return the path of its socket.

        :param place: a directory with a short path: that of a socket has a limit.
        """
        command = ["libvirtd"]
        if os.geteuid() == 0:
            user = pwd.getpwnam(_USER)
            os.chown(place, user.pw_uid, user.pw_gid)
            ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
            command = ["setpriv", "--pdeathsig=TERM", *ids, *command]
        binaries = f"{os.environ['PATH']}:/usr/sbin"
        variables = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
        places = dict.fromkeys((*variables, "XDG_DATA_HOME"), str(place))
        daemon = self._start("libvirtd", command, PATH=binaries, **places)
        path = place / "libvirt/libvirt-sock"
        daemon.wait(path.exists)
        return path

    # -- configuration --------------------------------------------------------------

    def _create_database(self) -> None:
        file = self._nova_conf("database", self._database())
        command = [BINARIES / "nova-manage", *file, "db", "sync", "--local_cell"]
        with (self.home / "nova-manage.log").open("wb") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True)

    def _database(self) -> Options:
        # SQLite lets writers wait for each other, as a real database does.
        return {
            "database": {"connection": f"sqlite:///{self.home}/nova.sqlite?timeout=60"}
        }

    def _nova_conf(self, name: str, options: Options) -> tuple[str, str]:
        """Write a configuration file; return the arguments that name it."""
        common = {
            "transport_url": f"rabbit://guest:guest@127.0.0.1:{self._broker_port}/",
            "host": "compute-1",
            "my_ip": "127.0.0.1",
            "state_path": self.home / "state",
        }
        path = self._cloud.file_of(
            **{
                "oslo_concurrency": {"lock_path": self.home / "locks"},
                "placement": self._cloud.credentials("nova"),
                **options,
                "DEFAULT": {**common, **options.get("DEFAULT", {})},
            }
        )
        return "--config-file", str(path)
