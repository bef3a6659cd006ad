# SPDX-License-Identifier: Apache-2.0

"""A host for tests: a simulated kernel, a configuration, and os_acc's service."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

from oslo_config import cfg

from os_acc import conf, privsep, service
from os_acc.attach.manager import Manager
from os_acc.bitstreams import options as bitstreams
from os_acc.objects.api import AcceleratorEntry
from os_acc.objects.device import Provider, RejectedDevice
from os_acc.objects.lease import HelperRecord, LeaseState, Owner
from os_acc.placement import client as placement
from os_acc.plugins import loader
from os_acc.privsep import claims, images, record, worker, xrt
from os_acc.privsep import kernel as privsep_kernel
from os_acc.profiles import options as profiles
from os_acc.testing import helper, tree
from os_acc.testing.image_directory import ImageDirectory
from os_acc.testing.kernel import FakeKernel
from os_acc.testing.nova import instance, request, uuid_of
from os_acc.testing.specs import HostSpec

#: A ``device_spec`` that names every function of a host.
EVERYTHING: Final = '{"address": "*:*:*.*"}'
#: The directories of files that a copy gets.
_COPIED: Final = ("state", "images", "profiles")
_OS_ACC = conf.GROUP.name
_BITSTREAMS = bitstreams.GROUP.name
_REGISTER: Mapping[str, Callable[[cfg.ConfigOpts], None]] = {
    _OS_ACC: conf.register,
    _BITSTREAMS: bitstreams.register,
    profiles.GROUP.name: profiles.register,
    placement.GROUP.name: placement.register,
}


def _register(config: cfg.ConfigOpts, group: str) -> None:
    if register := _REGISTER.get(group):
        register(config)
        return
    name = group.removeprefix(loader.section_of(""))
    for plugin_group, options in loader.list_opts([name]):
        config.register_opts(options, group=plugin_group)


def _texts(config: cfg.ConfigOpts, group: str, name: str, value: object) -> list[str]:
    """Return the values of an option in a file: several of a MultiOpt, else one."""
    try:
        option = config._get_opt_info(name, group)["opt"]
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
        # Options of the helpers, which other processes register.
        return [str(value)]
    if value is None:
        return []
    if option.multi:
        return [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
    form = "[{}]"
    if isinstance(value, Mapping):
        separator = getattr(option.type, "key_value_separator", ":")
        form, value = "{{{}}}", [f"{k}{separator}{each}" for k, each in value.items()]
    if not isinstance(value, list | tuple):
        return [str(value)]
    text = ",".join(map(str, value))
    return [form.format(text) if getattr(option.type, "bounds", False) else text]


def config_of(*files: str | os.PathLike[str]) -> cfg.ConfigOpts:
    """Return a configuration of these files, and none of the real host."""
    config = cfg.ConfigOpts()
    arguments = [f"--config-file={os.fspath(file)}" for file in files]
    config(arguments, default_config_files=[], default_config_dirs=[])
    return config


class TestHost:
    """A host with a simulated kernel, and os_acc's service on it.

    As a context manager it lets privileged code find this host, and in the end
    resumes writes that hang, and stops helpers::

        spec = HostSpec((hosts.dfl("0000:3b"),))
        with TestHost(tmp_path, spec) as host:
            host.images.put_gbs("gzip", GZIP)
            (entry,) = host.plug(1, "0000:3b:00.0", function_id=GZIP)
            assert host.drivers("0000:3b:00.0") == ["vfio-pci"]
            assert host.unplug(1) == 1

    The service starts when :attr:`manager` is first used. By default it may use
    every function, and programs images of the directory ``images``.

    :param directory: directory of the simulated tree, the state and the images.
    :param spec: the hardware; None: the directory has a host already.
    :param groups: options by group, other than ``[os_acc]``; those of installed
        plugins too.
    :param read: returns the configuration whose options are set.
    :param xrt_tools: directory of programs that stand in for XRT's.
    :param separate_helper: run privileged code in helper processes, as in production,
        not in this process with its writes in forked children.
    :param kernel_type: class of the simulated kernel.
    :param options: of ``[os_acc]``.
    :raises oslo_config.cfg.NoSuchOptError: no option has this name.
    :raises oslo_config.cfg.NoSuchGroupError: no group of os_acc or of an installed
        plugin has this name; ``read`` can register others.
    :raises ValueError: the value of an option is invalid.
    :ivar kernel: the simulated kernel, which also injects failures.
    :ivar options: options of ``[os_acc]``. A change takes effect at the next start
        of the service.
    :ivar groups: options of the other groups; see ``options``.
    """

    __test__ = False  # pytest shall not collect it.

    def __init__(
        self,
        directory: str | os.PathLike[str],
        spec: HostSpec | None = None,
        *,
        groups: Mapping[str, Mapping[str, object]] | None = None,
        read: Callable[[], cfg.ConfigOpts] = config_of,
        xrt_tools: str = "",
        separate_helper: bool = False,
        kernel_type: type[FakeKernel] = FakeKernel,
        **options: object,
    ) -> None:
        self.directory = Path(directory).absolute()
        root = self.directory / "host"
        self.kernel = kernel_type.build(root, spec) if spec else kernel_type(root)
        #: The directory of the simulated tree, for ``PluginBase.root``.
        self.root = self.kernel.root
        self.state_path = str(self.directory / "state")
        #: The bitstream images that os_acc may program.
        self.images = ImageDirectory(self.directory / "images")
        self.options: dict[str, object] = {
            "state_path": self.state_path,
            "device_spec": [EVERYTHING],
            "node_name": "node1",
            **options,
        }
        source = {"source": "directory", "directory": str(self.images.path)}
        self.groups: dict[str, dict[str, object]] = {_BITSTREAMS: dict(source)}
        for name, values in (groups or {}).items():
            self.groups.setdefault(name, {}).update(values)
        self._read = read
        self._xrt_tools = xrt_tools
        self._separate_helper = separate_helper
        self._manager: Manager | None = None
        self._entered = contextlib.ExitStack()
        # The parameters accept any name; oslo.config accepts only names of options.
        self.config()

    # -- begin and end -----------------------------------------------------------

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.installed())
            if self._separate_helper:
                command = helper.command(self.root, self.write_config())
                stack.enter_context(helper.privileged_by(command))
            else:
                stack.enter_context(helper.privileged_here())
            stack.callback(self.let_go)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Resume writes that hang, stop the helpers, and restore privileged code."""
        self._entered.close()

    @contextlib.contextmanager
    def installed(self) -> Iterator[Self]:
        """Make this host the one of this process, in a block.

        It is the host of privileged code, and of :func:`os_acc.initialize`. The
        block's end restores the previous host. See also :meth:`install`.
        """
        self.kernel.complete()
        with contextlib.ExitStack() as patches:
            for patch in self._patches():
                patches.enter_context(patch)
            yield self

    def _patches(self) -> Iterator[Any]:
        yield mock.patch.object(privsep_kernel, "current", self.kernel)
        yield mock.patch.object(service, "default_root", self.root)
        yield mock.patch.object(images, "directory", self._cache)
        if self._xrt_tools:
            yield mock.patch.object(xrt, "tools_directory", self._tools)

    def install(self) -> None:
        """Make this host the one of a process that ends with the test.

        A simulated kernel of the same tree that is installed already is kept.
        """
        kernel = privsep_kernel.current
        for patch in self._patches():
            patch.start()
        if kernel.root == self.root:
            privsep_kernel.current = kernel

    def let_go(self) -> None:
        """Let guests close their functions, and end all faults."""
        for function in self.kernel.snapshot():
            self.kernel.let_go(function.address)
        self.end_faults()

    def end_faults(self) -> None:
        """End injected failures, and wait until writes that hang have ended."""
        self.kernel.lift()
        for pid in tuple(worker._stuck):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        worker._stuck.clear()

    def _tools(self) -> str:
        return self._xrt_tools

    def _cache(self) -> str:
        return os.path.join(self.state_path, bitstreams.DIRECTORY)

    # -- copies ------------------------------------------------------------------

    def copy(self, directory: str | os.PathLike[str]) -> TestHost:
        """Copy the host with its state, images, profiles and present options.

        No process may use the host meanwhile. The copy's options name the copied files.

        :param directory: of the copy; it does not exist yet.
        """
        os.mkdir(directory)
        tree.copy(self.root, os.path.join(directory, "host"))
        for name in _COPIED:
            source = os.path.join(self.directory, name)
            tree.copy_in_place(source, os.path.join(directory, name))
        groups = {k: self._moved(each, directory) for k, each in self.groups.items()}
        return TestHost(
            directory,
            groups=groups,
            read=self._read,
            xrt_tools=self._xrt_tools,
            separate_helper=self._separate_helper,
            kernel_type=type(self.kernel),
            **self._moved(self.options, directory),
        )

    def _moved(
        self, values: Mapping[str, object], directory: str | os.PathLike[str]
    ) -> dict[str, Any]:
        # Replace paths of copied files by those of the copy.
        copied = [self.directory / name for name in (*_COPIED, "host")]
        return {
            name: os.path.join(directory, os.path.relpath(value, self.directory))
            if isinstance(value, str) and any(map(Path(value).is_relative_to, copied))
            else value
            for name, value in values.items()
        }

    def remove(self) -> None:
        """Remove the directory of the host."""
        shutil.rmtree(self.directory)

    # -- configuration and service -----------------------------------------------

    @property
    def manager(self) -> Manager:
        """The host's service; the first use starts it."""
        return self._manager or self.restart()

    def restart(self, **options: object) -> Manager:
        """Start the service again, and make it :attr:`manager`.

        :param options: of ``[os_acc]``, for this start only; to keep a value, set
            it in ``options``.
        """
        self._manager = self.start(**options)
        return self._manager

    def start(
        self, config: cfg.ConfigOpts | None = None, /, **options: object
    ) -> Manager:
        """Start another service on this host; :attr:`manager` stays as it is.

        The calling process must find the host: within :meth:`installed`, after
        :meth:`install`, or in this context manager.

        :param config: its configuration; None: that of :meth:`config`.
        :param options: of ``[os_acc]``, for this service only.
        """
        config = config or self.config(**options)
        return service.build(config, self.root, Owner.NOVA)

    def start_here(self, **options: object) -> Manager:
        """Install the host; start a service with privileged code in this process."""
        # A killed process may have left a change of the tree half-way.
        self.kernel.complete()
        self.install()
        return self.start(**options)

    def start_with_helpers(
        self, config_file: str, contexts: Sequence[privsep.Context] = helper.CONTEXTS
    ) -> Manager:
        """Do as :meth:`start_here`, but with helper processes as in production.

        :param config_file: from :meth:`write_config`.
        :param contexts: those with a helper process.
        """
        self.install()
        for context in helper.CONTEXTS:
            context.set_client_mode(context in contexts)
        helper.read_config(config_file)
        return service.build(cfg.CONF, self.root, Owner.NOVA)

    @contextlib.contextmanager
    def short_timeout(self) -> Iterator[None]:
        """Use a :attr:`manager` with a short write timeout, in a block."""
        before, self._manager = self.manager, self.start(write_timeout=1.0)
        try:
            yield
        finally:
            self._manager = before

    def config(self, **options: object) -> cfg.ConfigOpts:
        """Return the service's configuration.

        :param options: of ``[os_acc]``, beside and instead of ``options``.
        """
        config = self._read()
        for group, values in self._values(options).items():
            _register(config, group)
            for name, value in values.items():
                config.set_override(name, value, group=group)
        return config

    def write_config(
        self,
        name: str = "os-acc.conf",
        *,
        helper_command: str = "",
        threads: int = 0,
        **options: object,
    ) -> str:
        """Write a configuration file for other processes; return its path.

        :param helper_command: starts the privileged helpers, which read the file
            as well; empty: helpers on this host.
        :param threads: of each helper; 0: as by default.
        :param options: of ``[os_acc]``, beside and instead of ``options``.
        """
        config = self.config(**options)
        path = self.directory / name
        command = helper_command or helper.command(self.root)
        command += f" --config-file {shlex.quote(str(path))}"
        values_of = self._values(options)
        if self._xrt_tools:
            values_of["os_acc_xrt"] = {"tools": self._xrt_tools}
        for context in helper.CONTEXTS:
            of_helper = values_of.setdefault(context.cfg_section, {})
            of_helper["helper_command"] = command
            if threads:
                of_helper["thread_pool_size"] = threads
        with path.open("w") as file:
            for group, values in values_of.items():
                print(f"[{group}]", file=file)
                for option, value in values.items():
                    for text in _texts(config, group, option, value):
                        # oslo.config replaces $name in values.
                        print(f"{option} = {text.replace('$', '$$')}", file=file)
        return str(path)

    def _values(self, options: Mapping[str, object]) -> dict[str, dict[str, object]]:
        return {_OS_ACC: {**self.options, **options}, **self.groups}

    # -- devices and instances ---------------------------------------------------

    def provider(self, address: str) -> Provider:
        """Return the provider that offers this function, or the VFs of this PF.

        :raises LookupError: the host does not offer it.
        """
        for provider in self.manager.providers():
            device = provider.device
            found = (device.address, *(each.address for each in device.handles))
            if address in map(str, found):
                return provider
        raise LookupError(f"{address} is not offered")

    def rejected(self, address: str) -> RejectedDevice:
        """Return a function that is not offered, with the reason.

        :raises LookupError: no such function is rejected.
        """
        for rejected in self.manager.discover().refused:
            if str(rejected.address) == address:
                return rejected
        raise LookupError(f"{address} is not rejected")

    def plug(
        self, number: int, *addresses: str, amount: int = 1, **bitstream: str
    ) -> list[AcceleratorEntry]:
        """Plug accelerators for an instance.

        :param number: number of the instance; see :func:`os_acc.testing.uuid_of`.
        :param addresses: the function of each request group; none: one group, with
            the first provider.
        :param amount: units of each group.
        :param bitstream: extra specs ``accel1:<name>`` of the first group.
        """
        found = [self.provider(address) for address in addresses]
        selected, specs = request(*found or self.manager.providers()[:1], amount=amount)
        specs |= {f"accel1:{name}": value for name, value in bitstream.items()}
        return self.manager.plug(instance(number), selected, specs)

    def unplug(self, number: int) -> int:
        """Unplug all accelerators of an instance; return their number."""
        return self.manager.unplug(instance(number))

    def plugged(self, number: int) -> list[str]:
        """Return the addresses of an instance's leases."""
        leases = self.manager.store.leases(uuid_of(number))
        return [str(lease.address) for lease in leases]

    def lease_state(self, number: int = 1) -> LeaseState:
        """Return the state of the one lease of an instance."""
        (lease,) = self.manager.store.leases(uuid_of(number))
        return lease.state

    # -- the host, behind os_acc's back ------------------------------------------

    def drivers(self, *addresses: str) -> list[str | None]:
        """Return the drivers that functions are bound to."""
        return [self.kernel.state(address).driver for address in addresses]

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to a driver, as an operator can without os_acc.

        :param driver: empty: unbind it only.
        """
        device = self.kernel.path("sys/bus/pci/devices", address)
        if self.drivers(address) != [None]:
            self.kernel.write(f"{device}/driver/unbind", address)
        if driver:
            self.kernel.write(f"{device}/driver_override", driver)
            self.kernel.write(self.kernel.path("sys/bus/pci/drivers_probe"), address)
        assert self.drivers(address) == [driver or None]

    def remove_records(self) -> None:
        """Remove the privileged helper's records of the devices that it has taken."""
        for each in claims.claimed():
            record.remove(HelperRecord.of(*each).address)

    def programmings(self) -> list[str]:
        """Return the outcome of each programming that reached a DFL driver."""
        return [
            write.outcome
            for write in self.kernel.writes()
            if write.text.startswith("DFL_FPGA_FME_PORT_PR ")
        ]
