# SPDX-License-Identifier: Apache-2.0

"""Which service is asked, and how an operator says where it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.rest import options


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Who is asked.

    :ivar name: as messages have it.
    :ivar group: of the options to reach it with.
    :ivar defaults: of theirs that differ from keystoneauth1's.
    :ivar version: the last part of its endpoints, where it may be left out
        and every path that is asked for has it; or empty.
    :ivar spoken: why no version can be chosen.
    :ivar unavailable: to raise where nobody answers, or not in time.
    :ivar failing: to raise where it answers that it cannot now.
    :ivar patience: what to raise where it is never in time.
    :ivar missing: to raise where nobody has said who asks.
    """

    name: str
    group: cfg.OptGroup
    defaults: Mapping[str, Any]
    version: str
    spoken: str
    unavailable: type[exception.OsAccError]
    failing: type[exception.OsAccError]
    patience: str = "the operation's own timeout"
    missing: type[exception.InvalidConfiguration] = exception.InvalidConfiguration

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; a second time changes nothing."""
        options.register(conf, self.group, self.defaults)

    def list_opts(self) -> list[cfg.Opt]:
        """For oslo-config-generator."""
        return options.list_opts(self.defaults)
