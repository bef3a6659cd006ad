# SPDX-License-Identifier: Apache-2.0

"""A device profile as a part of a flavor.

Nova asks Cyborg for the profile that a flavor names in
``accel:device_profile``, adds its groups to the request as
``device_profile_<N>``, and knows nothing of them afterwards. The same is done
here, so that allocations which Placement made for such a request are
understood; and where there is no Cyborg, the flavor can have the groups
themselves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from os_acc import exception
from os_acc.objects.profile import DeviceProfile, index_of
from os_acc.objects.request import NUMBERED_SUFFIX, GroupPolicy
from os_acc.profiles.options import ProfileSource
from os_acc.scheduling import accel_keys, request_groups

#: The key by which a flavor names its profile. There is one in a request.
KEY: Final = accel_keys.DEVICE_PROFILE

# What is below accel: in a profile, Nova's API refuses there in a flavor.
_NAMESPACE: Final = "os_acc"


@dataclasses.dataclass(frozen=True, slots=True)
class ExpandedFlavor:
    """A flavor's extra specs, with the groups of the profile that they name.

    :ivar specs: whatever else was passed is returned as it is.
    :ivar profile: the name of the profile; '' where there is none.
    :ivar unread: the name of one whose groups are missing, as nobody has said where
        it is; or ''.
    """

    specs: object
    profile: str = ""
    unread: str = ""


def named(specs: object) -> str:
    """The device profile that a flavor names; '' where it names none, as in Nova."""
    name = specs.get(KEY) if isinstance(specs, Mapping) else None
    return name if isinstance(name, str) else ""


def expanded(specs: object, source: ProfileSource, deadline: float) -> ExpandedFlavor:
    """A flavor's extra specs with the groups of the profile that they name.

    The flavor's ``group_policy`` governs all of them. Where there are several, no
    more than one of them the flavor's own, one that is missing or invalid is
    ``none``, as in Nova.

    :param specs: as they were passed to us; whatever else it may be, it is
        judged by whoever reads it.
    :raises InvalidExtraSpec: a group has the suffix of one of the profile's; a key
        says another thing of a group than the profile; the policy is no text.
    :raises ProfileNotFound: there is none of that name.
    :raises InvalidProfile: nobody can be served by it.
    :raises ProfilesUnavailable: nobody answers who has the profiles.
    """
    if not isinstance(specs, Mapping) or not (name := named(specs)):
        return ExpandedFlavor(specs)
    profile = source.profile(name, deadline)
    own = _numbered(specs)
    whole: dict[Any, Any] = {key: specs[key] for key in specs if key != KEY}
    for group in profile.groups:
        if group.suffix in own:
            raise exception.InvalidExtraSpec(
                f"the flavor has a group {group.suffix!r}, which is what a group of "
                f"its device profile {profile.name} is called",
                hint="give the flavor's group another suffix",
            )
        for key, value in group.extra_specs(group.suffix, _NAMESPACE):
            _check_same(specs, key, value, profile)
            whole[key] = value
    if len(own) <= 1 < len(own) + len(profile.groups) and not _has_policy(specs):
        whole[request_groups.GROUP_POLICY] = GroupPolicy.NONE.value
    return ExpandedFlavor(whole, profile.name)


def _check_same(
    specs: Mapping[Any, object], key: str, value: str, profile: DeviceProfile
) -> None:
    """Nobody could say which of the two a guest was promised."""
    own = accel_keys.find(key)
    if own is None or key not in specs:
        return
    if accel_keys.read(own, specs[key]) != accel_keys.read(own, value):
        raise exception.InvalidExtraSpec(
            f"extra spec {key} is {exception.show(specs[key])}, and the flavor's "
            f"device profile {profile.name} has {exception.show(value)} there",
            hint="take the key out of the flavor, or use another profile",
        )


def of_its_own(specs: object) -> object:
    """A flavor's extra specs without what they say of the groups of its profile.

    For those to whom the profile's groups do not matter: nobody is asked for it.

    :param specs: see :func:`expanded`.
    """
    if not isinstance(specs, Mapping) or not named(specs):
        return specs
    return {key: specs[key] for key in specs if not _is_of_profile(key)}


def _is_of_profile(key: object) -> bool:
    own = accel_keys.find(key) if isinstance(key, str) else None
    return key == KEY or (own is not None and index_of(own.suffix) is not None)


def properties(profile: DeviceProfile, prefix: str = "") -> dict[str, str]:
    """What to put into a flavor that is to have a profile's groups itself.

    :param prefix: of their suffixes; by default the profile's name. What
        follows it is the number of the group, so it ends in no digit.
    :raises InvalidInput: there is no such suffix.
    """
    prefix = prefix or default_prefix(profile)
    if prefix[-1].isdigit():
        raise exception.InvalidInput(
            f"{exception.show(prefix)} ends in a digit: which groups are the profile's "
            "could not be told",
            hint="the number of the group follows it: end it in '_', for example",
        )
    found: dict[str, str] = {}
    for group in profile.groups:
        suffix = f"{prefix}{group.index}"
        if not re.fullmatch(NUMBERED_SUFFIX, suffix):
            raise exception.InvalidInput(
                f"{exception.show(suffix)} is no suffix of a request group",
                hint="it has at most 64 letters, digits, '-' and '_': choose a "
                "shorter prefix",
            )
        found |= group.extra_specs(suffix, _NAMESPACE)
    return found


def default_prefix(profile: DeviceProfile) -> str:
    """What the suffixes of a profile's groups begin with in a flavor."""
    return f"_{profile.name}_"


def lacks_policy(specs: Mapping[str, str]) -> bool:
    """Whether Placement refuses a flavor's groups for want of ``group_policy``."""
    return len(_numbered(specs)) > 1 and not _has_policy(specs)


def _has_policy(specs: Mapping[Any, object]) -> bool:
    """Whether a flavor has a policy that counts; one that does not is warned of."""
    return (
        request_groups.GROUP_POLICY in specs
        and request_groups.policy(specs[request_groups.GROUP_POLICY]) is not None
    )


def _numbered(specs: Mapping[Any, object]) -> set[str]:
    """The suffixes of the numbered groups of a flavor."""
    return {
        suffix
        for key in specs
        if isinstance(key, str) and (suffix := request_groups.suffix_of(key))
    }
