# SPDX-License-Identifier: Apache-2.0

"""Make the virt driver importable where Nova looks for virt drivers.

Nova imports ``nova.virt.<[DEFAULT] compute_driver>`` and nothing else
(``nova.virt.driver.load_compute_driver``). ``nova.virt`` is an ordinary package, and
Python searches each directory of its ``__path__``; :func:`extend_nova_virt` appends one
that contains a module ``os_acc``. There are two callers:

* :class:`VifPlugin`, an entry point of the group ``os_vif``: nova-compute loads this
  group before it creates its virt driver. It contains no VIF plugin.
* :func:`main`, the script ``os-acc-nova-compute``, where os_vif must not load the
  entry point.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Self

from oslo_config import cfg
from oslo_log import log

LOG = log.getLogger(__name__)

#: ``compute_driver`` of nova.conf.
DRIVER = "os_acc.LibvirtDriver"

_DIRECTORY = os.path.join(os.path.dirname(__file__), "virt")


def extend_nova_virt() -> None:
    """Let ``nova.virt.os_acc`` be imported; a second call does nothing."""
    virt = importlib.import_module("nova.virt")
    if _DIRECTORY not in virt.__path__:
        virt.__path__.append(_DIRECTORY)


class VifPlugin:
    """Extend ``nova.virt`` when os_vif loads its plugins.

    os_vif loads every entry point of its group in each process that uses it, Neutron's
    included, and an error would end that process. Therefore the class raises nothing,
    and does nothing unless nova.conf names the driver of os_acc.
    """

    #: os_vif lists the options of each plugin for oslo-config-generator.
    CONFIG_OPTS: tuple[cfg.Opt, ...] = ()

    @classmethod
    def load(cls, plugin_name: str) -> Self:
        """Return the plugin; see ``os_vif.plugin.PluginBase.load``."""
        if getattr(cfg.CONF, "compute_driver", None) == DRIVER:
            try:
                extend_nova_virt()
            except ImportError as error:
                LOG.error("cannot extend nova.virt for %s: %s", DRIVER, error)
        return cls()

    def describe(self) -> Any:
        """Return that no VIF type is supported."""
        objects = importlib.import_module("os_vif.objects.host_info")
        return objects.HostPluginInfo(plugin_name="os_acc", vif_info=[])


def main() -> None:
    """Run nova-compute with the driver of os_acc importable.

    ``nova.cmd.compute`` is imported first: it selects native threads, and forbids
    eventlet before another module imports it.
    """
    compute = importlib.import_module("nova.cmd.compute")
    extend_nova_virt()
    # oslo.config searches for the configuration file of this program.
    sys.argv[0] = "nova-compute"
    compute.main()
