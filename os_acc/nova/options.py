# SPDX-License-Identifier: Apache-2.0

"""The options of the virt driver, and of the filter and the weigher, as values.

:mod:`os_acc.conf` declares them.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Self

from oslo_config import cfg

from os_acc import conf, exception
from os_acc.conf import DRIVER, DRIVER_OPTIONS, SCHEDULER, SCHEDULER_OPTIONS
from os_acc.objects.numa import NUMAPolicy


def register_driver(config: cfg.ConfigOpts) -> None:
    """Register the options of the virt driver; registering twice is harmless."""
    config.register_group(copy.deepcopy(DRIVER))
    config.register_opts(DRIVER_OPTIONS, group=DRIVER.name)


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The options of ``[os_acc_scheduler]`` that do not change at run time."""

    numa_policy: NUMAPolicy
    trait_lifetime: float
    usage_lifetime: float
    cached_hosts: int
    placement_timeout: float

    @classmethod
    def load(cls, config: cfg.ConfigOpts) -> Self:
        """Read the options of nova-scheduler.

        :raises InvalidConfiguration: a value is invalid.
        """
        config.register_group(copy.deepcopy(SCHEDULER))
        config.register_opts(SCHEDULER_OPTIONS, group=SCHEDULER.name)
        try:
            group = config[SCHEDULER.name]
            return cls(
                NUMAPolicy(group.numa_policy),
                conf.seconds(group, "trait_lifetime", SCHEDULER.name),
                conf.seconds(group, "usage_lifetime", SCHEDULER.name),
                group.cached_hosts,
                conf.seconds(group, "placement_timeout", SCHEDULER.name),
            )
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error
