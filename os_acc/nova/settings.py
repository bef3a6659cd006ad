# SPDX-License-Identifier: Apache-2.0

"""The options of the virt driver, and of the filter and the weigher, as values.

:mod:`os_acc.conf` declares them.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

from oslo_config import cfg

from os_acc import conf, exception
from os_acc.conf import DRIVER, DRIVER_OPTIONS, SCHEDULER, SCHEDULER_OPTIONS
from os_acc.objects.numa import NUMAPolicy


@dataclasses.dataclass(frozen=True, slots=True)
class DriverSettings:
    """The options of ``[os_acc_driver]``; the times are in seconds."""

    initialize_interval: float
    reconcile_interval: float
    reconcile_age: float
    golden_images: bool
    iommufd: bool

    @classmethod
    def load(cls, config: cfg.ConfigOpts) -> Self:
        """Register and read the options of nova-compute.

        :raises InvalidConfiguration: a value is invalid.
        """
        return cls(**_values(config, DRIVER, DRIVER_OPTIONS))


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The options of ``[os_acc_scheduler]``; the times are in seconds."""

    numa_policy: NUMAPolicy
    trait_lifetime: float
    usage_lifetime: float
    placement_timeout: float
    cached_hosts: int
    accelerator_weight_multiplier: float

    @classmethod
    def load(cls, config: cfg.ConfigOpts) -> Self:
        """Register and read the options of nova-scheduler.

        :raises InvalidConfiguration: a value is invalid.
        """
        values = _values(config, SCHEDULER, SCHEDULER_OPTIONS)
        return cls(**{**values, "numa_policy": NUMAPolicy(values["numa_policy"])})


def _values(
    config: cfg.ConfigOpts, group: cfg.OptGroup, options: tuple[cfg.Opt, ...]
) -> dict[str, Any]:
    config.register_group(copy.deepcopy(group))
    config.register_opts(options, group=group.name)
    try:
        section = config[group.name]
        return {
            each.dest: section[each.dest]
            if isinstance(each, cfg.StrOpt | cfg.BoolOpt)
            else conf.number(section, each.dest, section=group.name)
            for each in options
        }
    except cfg.Error as error:
        raise exception.InvalidConfiguration(str(error)) from error
