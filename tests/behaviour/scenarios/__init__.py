# SPDX-License-Identifier: Apache-2.0

"""The scenarios; :data:`ALL` lists them."""

from . import (
    crashes,
    hotplug,
    numa,
    offers,
    operator,
    plugs,
    refusals,
    topology,
    unplugs,
    unsettled,
)
from .common import ALL

__all__ = [
    "ALL",
    "crashes",
    "hotplug",
    "numa",
    "offers",
    "operator",
    "plugs",
    "refusals",
    "topology",
    "unplugs",
    "unsettled",
]
