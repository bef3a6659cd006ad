# SPDX-License-Identifier: Apache-2.0

"""What a source of device profiles is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from os_acc import exception
from os_acc.objects.profile import DeviceProfile

#: A profile, or why it cannot be used.
Judged: TypeAlias = DeviceProfile | exception.OsAccError


class ProfileSource(Protocol):
    """Somebody who has device profiles."""

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """The profile of this name, or with this uuid.

        :param deadline: on :func:`time.monotonic`.
        :raises ProfileNotFound: there is none.
        :raises InvalidProfile: it is none that anybody can have.
        :raises ProfilesUnavailable: nobody answers.
        """

    def judged(self, deadline: float) -> Iterator[tuple[str, Judged]]:
        """Everything that there is, with its place, in no order.

        :raises ProfilesUnavailable: nobody answers.
        """
