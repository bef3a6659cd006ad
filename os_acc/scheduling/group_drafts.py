# SPDX-License-Identifier: Apache-2.0

"""Request groups while they are read, key by key."""

from __future__ import annotations

import dataclasses

from os_acc import exception
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import AttachTarget, RequestGroup


@dataclasses.dataclass(slots=True)
class GroupBuilder:
    """A group as far as it has been read."""

    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    required: set[str] = dataclasses.field(default_factory=set)
    forbidden: set[str] = dataclasses.field(default_factory=set)
    wish: BitstreamRequest | None = None
    attach_target: AttachTarget | None = None
    numa_policy: NUMAPolicy | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing; Nova strips amounts of zero."""
        return not (
            any(self.resources.values())
            or self.required
            or self.forbidden
            or self.wish is not None
            or self.attach_target not in (None, AttachTarget.VM)
            or self.numa_policy is not None
        )

    def group(self, suffix: str) -> RequestGroup:
        """The group that it has become."""
        return RequestGroup(
            suffix=suffix,
            resources=tuple(
                (name, amount)
                for name, amount in sorted(self.resources.items())
                if amount
            ),
            required=frozenset(self.required),
            forbidden=frozenset(self.forbidden),
            wish=self.wish,
            attach_target=self.attach_target or AttachTarget.VM,
            numa_policy=self.numa_policy,
        )


def text_of(key: str, value: object) -> str:
    """The value of an extra spec, which has to be text.

    :raises InvalidExtraSpec: it is not.
    """
    if not isinstance(value, str):
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} is {exception.show(value)}, "
            f"a {type(value).__name__}, not text"
        )
    return value
