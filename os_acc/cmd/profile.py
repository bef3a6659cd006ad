# SPDX-License-Identifier: Apache-2.0

"""``os-acc profile``: device profiles, and their application to flavors."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

from os_acc.cmd import base
from os_acc.objects.request_group import DeviceProfile, ProfileGroup
from os_acc.profiles import expansion
from os_acc.profiles.flavors import Flavors
from os_acc.profiles.sources import ProfileSource

_WITHOUT_POLICY = (
    "the flavor has several groups: also set group_policy to isolate or none"
)


class ProfileList(base.Listing):
    """List the device profiles that a flavor may name.

    Their source is in [os_acc_profiles]: files of this host, or Cyborg.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        found = []
        for where, each in _source(self).checked(self.deadline()):
            if isinstance(each, DeviceProfile):
                found.append(each)
            else:
                self.remark(f"ignoring a profile in {where}: {each}")
        return ("Name", "UUID", "Groups", "Accelerators", "Description"), [
            (
                each.name,
                each.uuid,
                len(each.groups),
                each.accelerators,
                _text(each.description),
            )
            for each in sorted(found, key=lambda each: each.name)
        ]


class ProfileShow(base.Showing):
    """Show the request groups of a device profile."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_profile(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        found = _source(self).profile(parsed_args.profile, self.deadline())
        return ("Name", "UUID", "Description", "Groups", "Accelerators"), (
            found.name,
            found.uuid,
            _text(found.description),
            _groups(found.groups),
            found.accelerators,
        )


class ProfileCheck(base.Listing):
    """Check every device profile; ends with 1 if one cannot be used.

    Cyborg also accepts profiles that cannot be served: it checks nothing
    below accel:.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        rows: list[tuple[str | None, str, str]] = []
        for where, each in _source(self).checked(self.deadline()):
            if isinstance(each, DeviceProfile):
                rows.append((each.name, where, "can be used"))
            else:
                self.is_failed = True
                rows.append((None, where, str(each)))
        return ("Name", "Where", "Result"), rows


class ProfileApply(base.Showing):
    """Add a device profile's groups to a flavor, for a cloud without Cyborg.

    Nova resolves accel:device_profile by Cyborg alone. A flavor with the groups
    themselves needs no Cyborg. Prints the command that sets them; with --set,
    sets them, and removes the properties of an earlier version of the profile.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_profile(parser)
        parser.add_argument(
            "flavor", metavar="FLAVOR", help="the name or the id of the flavor"
        )
        parser.add_argument(
            "--suffix",
            metavar="TEXT",
            default="",
            help="prefix of the groups' suffixes, before the numbers; must not end "
            "in a digit. Default: the profile's name between '_'",
        )
        parser.add_argument(
            "--set",
            action="store_true",
            help="set the properties, by Nova's API: see [os_acc_nova]",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        profile = _source(self).profile(parsed_args.profile, self.deadline())
        flavor, prefix = parsed_args.flavor, parsed_args.suffix or f"_{profile.name}_"
        properties = expansion.properties(profile, prefix)
        shown = _properties(properties)
        if not parsed_args.set:
            if expansion.lacks_policy(properties):
                self.remark(_WITHOUT_POLICY)
            command = _command(flavor, properties)
            return ("Flavor", "Properties", "Command"), (flavor, shown, command)
        flavors = Flavors(self.os_acc.config)
        applied = flavors.apply(flavor, properties, prefix, self.deadline())
        if expansion.lacks_policy(applied.properties):
            self.remark(_WITHOUT_POLICY)
        if expansion.named(applied.properties):
            self.remark(
                f"the flavor has {expansion.KEY} as well: Nova asks Cyborg for it"
            )
        removed = list(applied.removed)
        return ("Flavor", "Properties", "Removed"), (applied.name, shown, removed)


def _text(given: str) -> base.Formatted:
    """Format third-party text; control characters are replaced for terminals."""
    return base.Formatted(given, "\n".join(map(base.plain, given.splitlines())))


def _groups(groups: Sequence[ProfileGroup]) -> base.Formatted:
    """Format groups as lines for people, and as in the profile for programs."""
    lines = []
    for group in groups:
        lines.append(f"group {group.index}:")
        lines += [f"  {key}={value}" for key, value in group.properties]
    values = [dict(group.properties) for group in groups]
    return base.Formatted(values, "\n".join(lines))


def _properties(given: Mapping[str, str]) -> base.Formatted:
    lines = (f"{key}={value}" for key, value in given.items())
    return base.Formatted(dict(given), "\n".join(lines))


def _command(flavor: str, properties: Mapping[str, str]) -> str:
    words = ["openstack", "flavor", "set"]
    for key, value in properties.items():
        words += ["--property", f"{key}={value}"]
    return shlex.join([*words, flavor])


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "profile", metavar="PROFILE", help="the name or the UUID of the profile"
    )


def _source(command: base.Acting) -> ProfileSource:
    return expansion.ProfileLookup(command.os_acc.config).source
