# SPDX-License-Identifier: Apache-2.0

"""os_acc's keys, for Nova to judge when a flavor is made.

Nova's API loads this module by its entry point in the group
``nova.api.extra_spec_validators``, and asks it from microversion 2.86 on. So
a misspelt key is refused when the flavor is made, and not when the first
server is. ``nova.api.validation.extra_specs.base`` has the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base

from os_acc import exception
from os_acc.objects.request import NUMBERED_SUFFIX
from os_acc.scheduling import accel_keys

_GROUP: Final = {"name": "group", "pattern": f"({NUMBERED_SUFFIX})?"}
# Of several lines, too: what has none of the names below is ours to refuse.
_ANYTHING: Final = {"name": "key", "pattern": r"[\s\S]*"}
_DESCRIPTIONS: Final = {
    "bitstream_id": "the id of the image",
    "bitstream_name": "the name of the image",
    "function_id": "the id of the function of the image",
    "function_name": "the name of the function of the image",
    "numa_policy": "how near to the server's memory its accelerators have to be",
    "attach_target": "who is to have the accelerators",
}


class AccelKeyValidator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Keys of one form, judged by the rules that a plug judges them by."""

    def validate(self, name: str, value: str) -> None:
        """Judge a key and its value.

        :raises nova.exception.ValidationError: os_acc would refuse them.
        """
        try:
            accel_keys.check(name, value)
        except exception.InvalidExtraSpec as error:
            raise nova_exception.ValidationError(
                f"Validation failed; {error}."
            ) from error


def register() -> list[AccelKeyValidator]:
    """Every key that os_acc reads, and last what is like them and no key."""
    return [*_known(), *_of_the_specification(), *_unknown()]


def _known() -> Iterator[AccelKeyValidator]:
    for namespace in accel_keys.NAMESPACES:
        for name in accel_keys.KEYS:
            about = f"For the accelerators of a group: {_DESCRIPTIONS[name]}."
            choices = accel_keys.CHOICES.get(name)
            yield AccelKeyValidator(
                name=f"{namespace}{{group}}:{name}",
                description=about,
                value={"type": str, **({"enum": list(choices)} if choices else {})},
                parameters=[_GROUP],
            )


def _of_the_specification() -> Iterator[AccelKeyValidator]:
    for namespace, name in accel_keys.OF_THE_SPECIFICATION.items():
        yield AccelKeyValidator(
            name=f"{namespace}:{{key}}",
            description=f"As accel:{name}, for the unnumbered group.",
            value={"type": str, "enum": ["required"]},
            parameters=[_ANYTHING],
        )


def _unknown() -> Iterator[AccelKeyValidator]:
    # Nova itself would refuse these, but with no hint, and would take every
    # namespace that begins like one of ours for ours: 'accelerator:size'.
    for namespace in accel_keys.NAMESPACES:
        yield AccelKeyValidator(
            name=f"{namespace}{{group}}:{{key}}",
            description="No key of os_acc.",
            value={"type": str},
            parameters=[_GROUP, _ANYTHING],
        )
