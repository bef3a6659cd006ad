# SPDX-License-Identifier: Apache-2.0

"""Initialize the library as a service does, in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

from oslo_config import cfg

import os_acc
from os_acc import conf, privsep, service
from os_acc.privsep import kernel
from os_acc.privsep.nvme import context as nvme_context
from os_acc.testing import FakeKernel

CONTEXTS = (privsep.base, privsep.inspect, privsep.image, nvme_context)
#: Seconds for three helpers that start at once, in software emulation on a machine
#: with other work.
_START = 240.0
# Registered as by Nova (nova/conf/pci.py).
_NOVAS = cfg.MultiStrOpt("device_spec", default=[])


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """An operator's configuration.

    :ivar root: ``/``, or the tree of a simulated kernel.
    :ivar nova: values of Nova's ``[pci] device_spec``.
    :ivar helper_command: empty on a simulated kernel: privileged code then
    runs in the calling process.
    """

    root: str
    state_path: str
    device_spec: tuple[str, ...] = ()
    nova: tuple[str, ...] = ()
    write_timeout: float = 60.0
    unplug_timeout: float = 120.0
    initialize_timeout: float = 60.0
    helper_start_timeout: float = _START
    helper_command: str = ""

    def dump(self) -> str:
        """Return the options as text, for the command line of another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, text: str) -> Options:
        """Parse a text of :meth:`dump`."""
        fields = json.loads(text)
        for name in ("device_spec", "nova"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def make_ready(options: Options) -> None:
    """Run ``initialize(reset=True)`` with these options."""
    config = cfg.CONF
    _configure(config, options)
    for section in conf.PRIVSEP_GROUPS:
        config.set_override("helper_command", options.helper_command, group=section)
    for context in CONTEXTS:
        context.set_client_mode(bool(options.helper_command))
    if options.root == "/":
        os_acc.initialize(reset=True)
        return
    if kernel.current.root != os.path.realpath(options.root):
        kernel.current = FakeKernel(options.root)
    service.initialize(reset=True, config=config, root=options.root)


def another_node(options: Options, name: str) -> os_acc.Node:
    """Initialize another compute node of this process, on the real kernel.

    The privileged helpers serve all nodes, and read the global configuration.
    """
    config = configuration(options)
    return os_acc.initialize(reset=True, node_name=name, config=config)


def configuration(options: Options) -> cfg.ConfigOpts:
    """Return a configuration with these options, beside the global one."""
    config = cfg.ConfigOpts()
    _configure(config, options)
    return config


def end() -> None:
    """End this process's helpers, and clear the configuration."""
    for context in CONTEXTS:
        # A killed helper has left a broken pipe.
        with contextlib.suppress(OSError):
            context.stop()
        context.channel = None
    conf.register(cfg.CONF)
    cfg.CONF.register_opts([_NOVAS], group="pci")
    # reset() would also remove the options that the contexts themselves have set.
    cfg.CONF.clear()
    for group, name in _OVERRIDDEN:
        cfg.CONF.clear_override(name, group=group)
    for section in conf.PRIVSEP_GROUPS:
        cfg.CONF.clear_override("helper_command", group=section)


_OVERRIDDEN = (
    ("os_acc", "state_path"),
    ("os_acc", "device_spec"),
    ("os_acc", "write_timeout"),
    ("os_acc", "unplug_timeout"),
    ("os_acc", "initialize_timeout"),
    ("os_acc", "helper_start_timeout"),
    ("pci", "device_spec"),
)


def _configure(config: cfg.ConfigOpts, options: Options) -> None:
    conf.register(config)
    config.register_opts([_NOVAS], group="pci")
    config([], project="os_acc", default_config_files=[], default_config_dirs=[])
    values = (
        options.state_path,
        list(options.device_spec),
        options.write_timeout,
        options.unplug_timeout,
        options.initialize_timeout,
        options.helper_start_timeout,
        list(options.nova),
    )
    for (group, name), value in zip(_OVERRIDDEN, values, strict=True):
        config.set_override(name, value, group=group)
