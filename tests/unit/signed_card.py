# SPDX-License-Identifier: Apache-2.0

"""A plugin for DFL cards that accept signed bitstreams alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Final

from os_acc.plugins import base
from os_acc.plugins.dfl import DflPlugin

#: Its entry point.
PLUGIN: Final = "tests.unit.signed_card:SignedPlugin"


class SignedPlugin(DflPlugin):
    """The DFL plugin, for cards whose hardware authenticates each bitstream."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[base.Device | base.RejectedDevice]:
        for found in super().discover(candidates):
            if isinstance(found, base.Device) and found.region is not None:
                yield dataclasses.replace(found, region=_signed(found.region))
            else:
                yield found

    def read_region(self, region: base.Region) -> base.Region | None:
        found = super().read_region(region)
        return None if found is None else _signed(found)


def _signed(region: base.Region) -> base.Region:
    return dataclasses.replace(region, is_authenticated=True)
