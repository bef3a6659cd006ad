# SPDX-License-Identifier: Apache-2.0

"""The options of the virt driver, and of the filter and the weigher, as values.

:mod:`os_acc.conf` declares them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Iterator
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
class DriverSettings:
    """The options of ``[os_acc_driver]``, in seconds."""

    initialize_interval: float
    reconcile_interval: float
    reconcile_age: float

    @classmethod
    def load(cls, config: cfg.ConfigOpts) -> Self:
        """Read the options of nova-compute.

        :raises InvalidConfiguration: a value is invalid.
        """
        register_driver(config)
        with _reading(config, DRIVER.name) as group:
            number = functools.partial(conf.number, group, section=DRIVER.name)
            return cls(
                initialize_interval=number("initialize_interval"),
                reconcile_interval=number("reconcile_interval"),
                reconcile_age=number("reconcile_age"),
            )


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
        """Read the options of nova-scheduler.

        :raises InvalidConfiguration: a value is invalid.
        """
        config.register_group(copy.deepcopy(SCHEDULER))
        config.register_opts(SCHEDULER_OPTIONS, group=SCHEDULER.name)
        with _reading(config, SCHEDULER.name) as group:
            number = functools.partial(conf.number, group, section=SCHEDULER.name)
            return cls(
                numa_policy=NUMAPolicy(group.numa_policy),
                trait_lifetime=number("trait_lifetime"),
                usage_lifetime=number("usage_lifetime"),
                placement_timeout=number("placement_timeout"),
                cached_hosts=int(number("cached_hosts")),
                accelerator_weight_multiplier=number("accelerator_weight_multiplier"),
            )


@contextlib.contextmanager
def _reading(
    config: cfg.ConfigOpts, section: str
) -> Iterator[cfg.ConfigOpts.GroupAttr]:
    try:
        yield config[section]
    except cfg.Error as error:
        raise exception.InvalidConfiguration(str(error)) from error
