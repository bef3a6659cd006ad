# SPDX-License-Identifier: Apache-2.0

"""The result of a release of several leases, and its error."""

from __future__ import annotations

import dataclasses

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The result of a release.

    :ivar done: the leases that were released.
    :ivar failed: the other leases, as recorded now, each with its error.
    """

    done: tuple[Lease, ...]
    failed: tuple[tuple[Lease, exception.OsAccError], ...]

    def failure(self) -> exception.DevicesUnreleased:
        """Return the error for the failed leases; its cause is the first error."""
        consumers = " and ".join(sorted({lease.consumer for lease, _ in self.failed}))
        addresses = exception.some([str(lease.address) for lease, _ in self.failed], 4)
        reasons = "; ".join(str(error) for _, error in self.failed)
        error = exception.DevicesUnreleased(
            f"cannot release {addresses} of {consumers}: {reasons}",
            released=[str(lease.address) for lease in self.done],
            unreleased=[(str(lease.address), why) for lease, why in self.failed],
            hint=self._hint(),
        )
        error.__cause__ = self.failed[0][1]
        return error

    def _hint(self) -> str:
        quarantined = [
            lease for lease, _ in self.failed if lease.state is LeaseState.QUARANTINED
        ]
        if not quarantined:
            return "the service retries the release; unplug again to retry now"
        ways = "; ".join(
            f"os-acc device release {lease.address}" for lease in quarantined
        )
        return f"repair the cause, then run: {ways}"
