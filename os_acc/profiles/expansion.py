# SPDX-License-Identifier: Apache-2.0

"""Expansion of device profiles in flavors.

Nova reads the profile that a flavor names in ``accel:device_profile`` from Cyborg,
adds its groups to the request as ``device_profile_<N>``, and keeps no record of
them. This module does the same, to interpret the resulting allocations. Without
Cyborg, the flavor can contain the groups themselves.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.request_group import (
    NUMBERED_SUFFIX,
    DeviceProfile,
    GroupPolicy,
    profile_index,
)
from os_acc.profiles.options import ProfileSettings
from os_acc.profiles.sources import Cyborg, ProfileFiles, ProfileSource
from os_acc.scheduling import accel_keys, extra_specs

#: The extra spec that names a flavor's profile. A request has at most one profile.
KEY: Final = accel_keys.DEVICE_PROFILE

# Nova's API rejects a profile's accel: keys in a flavor.
_NAMESPACE: Final = "os_acc"


@dataclasses.dataclass(frozen=True, slots=True)
class ExpandedFlavor:
    """A flavor's extra specs, with the groups of its device profile.

    :ivar specs: a value that is no mapping is returned unchanged.
    :ivar profile: the name of the profile, or ''.
    :ivar unreadable: the name of a profile that was not expanded because no source
        is configured, or ''.
    """

    specs: object
    profile: str = ""
    unreadable: str = ""


def named(specs: object) -> str:
    """Return the device profile that a flavor names, or '', as in Nova."""
    name = specs.get(KEY) if isinstance(specs, Mapping) else None
    return name if isinstance(name, str) else ""


def expanded(specs: object, source: ProfileSource, deadline: float) -> ExpandedFlavor:
    """Return a flavor's extra specs with the groups of its device profile.

    The flavor's ``group_policy`` applies to all groups. If there are several, at
    most one of them the flavor's own, a missing or invalid policy is ``none``,
    as in Nova.

    :param specs: the extra specs; the parser validates them.
    :raises InvalidExtraSpec: a flavor's group has the suffix of a profile's
        group; a key differs between the flavor and the profile; the policy is no
        text.
    :raises NotFound: no profile has this name.
    :raises InvalidProfile: no request can satisfy the profile.
    :raises ServiceUnavailable: the source does not answer.
    """
    if not isinstance(specs, Mapping) or not (name := named(specs)):
        return ExpandedFlavor(specs)
    profile = source.profile(name, deadline)
    own = _numbered(specs)
    found: dict[Any, Any] = {key: specs[key] for key in specs if key != KEY}
    for group in profile.groups:
        if group.suffix in own:
            raise exception.InvalidExtraSpec(
                f"the flavor and its device profile {profile.name} both have "
                f"a group {group.suffix!r}",
                hint="change the suffix of the flavor's group",
            )
        for key, value in group.extra_specs(group.suffix, _NAMESPACE):
            _check_same(specs, key, value, profile)
            found[key] = value
    if len(own) <= 1 < len(own) + len(profile.groups) and not _has_policy(specs):
        found[extra_specs.GROUP_POLICY] = GroupPolicy.NONE.value
    return ExpandedFlavor(found, profile.name)


class ProfileLookup:
    """Look up the device profiles of flavors.

    :raises InvalidConfiguration: an option is invalid.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = ProfileSettings.load(conf)
        self.source: ProfileSource = (
            Cyborg(conf)
            if self._settings.source == "cyborg"
            else ProfileFiles(self._settings.catalogue)
        )

    def expanded(self, specs: object, deadline: float) -> ExpandedFlavor:
        """See :func:`expanded`.

        Without a configured source, the profile is left to Nova and Cyborg, as it
        is without os_acc: its name is returned as ``unreadable``.
        """
        if (name := named(specs)) and self._are_nowhere():
            return ExpandedFlavor(specs, unreadable=name)
        return expanded(specs, self.source, deadline)

    def _are_nowhere(self) -> bool:
        """Return whether no source is configured, and the default has no file."""
        if self._settings.source != "catalogue" or self._settings.is_set:
            return False
        try:
            # lstat(): a dangling link is a configured source.
            os.lstat(self._settings.catalogue)
        except OSError as error:
            # Reading the file reports any other error.
            return isinstance(error, FileNotFoundError)
        return False


def _check_same(
    specs: Mapping[Any, object], key: str, value: str, profile: DeviceProfile
) -> None:
    own = accel_keys.find(key)
    if own is None or key not in specs:
        return
    if accel_keys.read(own, specs[key]) != accel_keys.read(own, value):
        raise exception.InvalidExtraSpec(
            f"extra spec {key} is {exception.show(specs[key])}, but the "
            f"flavor's device profile {profile.name} sets it to "
            f"{exception.show(value)}",
            hint="remove the key from the flavor, or use another profile",
        )


def without_profile(specs: object) -> object:
    """Return a flavor's extra specs without those of its profile's groups.

    The profile is not read.

    :param specs: see :func:`expanded`.
    """
    if not isinstance(specs, Mapping) or not named(specs):
        return specs
    return {key: specs[key] for key in specs if not _is_of_profile(key)}


def _is_of_profile(key: object) -> bool:
    own = accel_keys.find(key) if isinstance(key, str) else None
    return key == KEY or (own is not None and profile_index(own.suffix) is not None)


def properties(profile: DeviceProfile, prefix: str) -> dict[str, str]:
    """Return the properties for a flavor with the groups of a profile.

    :param prefix: the prefix of the group suffixes. The number of the group follows,
        so the prefix must not end in a digit.
    :raises InvalidInput: the suffix is invalid.
    """
    if prefix[-1].isdigit():
        raise exception.InvalidInput(
            f"prefix {exception.show(prefix)} ends in a digit: the groups "
            "of the profile could not be distinguished",
            hint="append a character such as '_'; the number of the group "
            "follows the prefix",
        )
    found: dict[str, str] = {}
    for group in profile.groups:
        suffix = f"{prefix}{group.index}"
        if not re.fullmatch(NUMBERED_SUFFIX, suffix):
            raise exception.InvalidInput(
                f"{exception.show(suffix)} is not a suffix of a request group",
                hint="use a prefix that results in at most 64 letters, digits, "
                "'-' and '_'",
            )
        found |= group.extra_specs(suffix, _NAMESPACE)
    return found


def lacks_policy(specs: Mapping[str, str]) -> bool:
    """Return whether Placement rejects the groups without a ``group_policy``."""
    return len(_numbered(specs)) > 1 and not _has_policy(specs)


def _has_policy(specs: Mapping[Any, object]) -> bool:
    """Return whether a flavor has a valid policy; the parser warns of others."""
    return (
        extra_specs.GROUP_POLICY in specs
        and extra_specs.group_policy(specs[extra_specs.GROUP_POLICY]) is not None
    )


def _numbered(specs: Mapping[Any, object]) -> set[str]:
    """Return the suffixes of a flavor's numbered groups."""
    return {
        suffix
        for key in specs
        if isinstance(key, str) and (suffix := extra_specs.suffix_of(key))
    }
