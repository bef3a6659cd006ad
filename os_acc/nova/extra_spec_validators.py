# SPDX-License-Identifier: Apache-2.0

"""Nova's validators of os_acc's extra specs.

Nova's API loads this module by its entry point in the group
``nova.api.extra_spec_validators``, and validates extra specs from microversion 2.86
on: it rejects a misspelt key when the flavor is created, not when the first server
is. The interface is ``nova.api.validation.extra_specs.base``.
"""

from __future__ import annotations

from typing import Final

from nova import exception as nova_exception
from nova.api.validation.extra_specs import base

from os_acc import exception
from os_acc.objects.request_group import NUMBERED_SUFFIX
from os_acc.scheduling import accel_keys

_GROUP: Final = {"name": "group", "pattern": f"({NUMBERED_SUFFIX})?"}
# Newlines included: a key with no known name must reach this validator.
_ANYTHING: Final = {"name": "key", "pattern": r"[\s\S]*"}
_DESCRIPTIONS: Final = {
    "bitstream_id": "the ID of the image",
    "bitstream_name": "the name of the image",
    "function_id": "the ID of the image's function",
    "function_name": "the name of the image's function",
    "numa_policy": "the NUMA affinity between the accelerators and the server",
    "attach_target": "the consumer of the accelerators",
}


class AccelKeyValidator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Validator of keys of one form, with the rules of a plug."""

    def validate(self, name: str, value: str) -> None:
        """Validate a key and its value.

        :raises nova.exception.ValidationError: os_acc would reject them.
        """
        try:
            accel_keys.check(name, value)
        except exception.InvalidExtraSpec as error:
            raise nova_exception.ValidationError(
                f"Validation failed; {error}."
            ) from error


def register() -> list[AccelKeyValidator]:
    """Return validators of all keys; the last ones reject unknown keys."""
    found = []
    for namespace in accel_keys.NAMESPACES:
        for name in accel_keys.KEYS:
            about = f"For the accelerators of a group: {_DESCRIPTIONS[name]}."
            choices = accel_keys.CHOICES.get(name)
            found.append(
                AccelKeyValidator(
                    name=f"{namespace}{{group}}:{name}",
                    description=about,
                    value={"type": str, **({"enum": [*choices]} if choices else {})},
                    parameters=[_GROUP],
                )
            )
    found += [
        AccelKeyValidator(
            name=f"{namespace}:{{key}}",
            description=f"As accel:{name}, for the unnumbered group.",
            value={"type": str, "enum": ["required"]},
            parameters=[_ANYTHING],
        )
        for namespace, name in accel_keys.OF_THE_SPECIFICATION.items()
    ]
    # Nova would also reject other keys, but without a hint; and it would match
    # foreign namespaces with one of our prefixes: 'accelerator:size'.
    return found + [
        AccelKeyValidator(
            name=f"{namespace}{{group}}:{{key}}",
            description="Not a key of os_acc.",
            value={"type": str},
            parameters=[_GROUP, _ANYTHING],
        )
        for namespace in accel_keys.NAMESPACES
    ]
