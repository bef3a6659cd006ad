# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: one accelerator of one group of a device profile."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

from os_acc import exception
from os_acc.objects.instance import canonical_uuid, consumer_uuid
from os_acc.objects.lease import Lease, LeaseState


class RequestState(enum.Enum):
    """How far a request is, in Cyborg's words.

    Those with a lease are what the lease is; the others are recorded.
    """

    INITIAL = "Initial"
    BIND_STARTED = "BindStarted"
    BOUND = "Bound"
    BIND_FAILED = "BindFailed"
    UNBOUND = "Unbound"
    UNBIND_FAILED = "UnbindFailed"
    DELETING = "Deleting"


#: What the lease of a request says of its state.
OF_LEASE: Final[Mapping[LeaseState, RequestState]] = MappingProxyType(
    {
        LeaseState.PREPARING: RequestState.BIND_STARTED,
        LeaseState.HELD: RequestState.BOUND,
        LeaseState.RELEASING: RequestState.DELETING,
        LeaseState.QUARANTINED: RequestState.UNBIND_FAILED,
    }
)
#: After which nothing more happens by itself: Nova asks for these with
#: ``bind_state=resolved``.
RESOLVED: Final = frozenset(
    {RequestState.BOUND, RequestState.BIND_FAILED, RequestState.DELETING}
)


class RequestAction(enum.Enum):
    """What can be asked for with a request."""

    BIND = "bind"
    UNBIND = "unbind"
    DELETE = "delete"


#: In which states what may be asked for. A request that failed to be bound is
#: unbound before it is bound again, as in Cyborg: somebody has to have seen
#: that. One that is bound is unbound before it is deleted.
LEGAL: Final[Mapping[RequestAction, frozenset[RequestState]]] = MappingProxyType(
    {
        RequestAction.BIND: frozenset({RequestState.INITIAL, RequestState.UNBOUND}),
        RequestAction.UNBIND: frozenset(RequestState),
        RequestAction.DELETE: frozenset(
            {RequestState.INITIAL, RequestState.UNBOUND, RequestState.BIND_FAILED}
        ),
    }
)


#: What a binding names, in Nova's words.
BINDING: Final = ("hostname", "device_rp_uuid", "instance_uuid")


@dataclasses.dataclass(frozen=True, slots=True)
class RequestBinding:
    """To what a request is bound: Nova's three words.

    :ivar hostname: the compute node.
    :ivar device_rp_uuid: the resource provider.
    :ivar instance_uuid: the instance.
    """

    hostname: str
    device_rp_uuid: str
    instance_uuid: str

    @classmethod
    def from_api(cls, uuid: object, given: object) -> Self:
        """Check a binding that somebody passes.

        :param uuid: of the request, for an error's message.
        :raises InvalidInput: it is none.
        """
        if not isinstance(given, Mapping) or set(given) != set(BINDING):
            raise exception.InvalidInput(
                f"the binding of {exception.show(uuid)} is {exception.show(given)}",
                hint=f"it has {', '.join(BINDING)}",
            )
        hostname = given["hostname"]
        if not isinstance(hostname, str):
            raise exception.InvalidInput(
                f"{exception.show(hostname)} is no host's name"
            )
        return cls(
            hostname,
            uuid_from_api(given["device_rp_uuid"]),
            consumer_uuid(given["instance_uuid"]),
        )

    def is_same(self, other: RequestBinding) -> bool:
        """Whether it is the other one, whatever either calls this host."""
        return dataclasses.replace(self, hostname=other.hostname) == other


@dataclasses.dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A request for one accelerator.

    :ivar profile: the name of the profile that it was made of; '' where a plug
        has made it, of a flavor that names none.
    :ivar group: the index of its group there; None: it has no profile.
    :ivar properties: what the group asked for then; the profile may have been
        changed since. Of what a plug has made that is not known.
    :ivar recorded: its state while there is no lease.
    :ivar binding: to what it is, or was last, bound; None: never.
    :ivar reason: why it could not be bound, or empty.
    :ivar lease: what it has; None while it has nothing.
    """

    uuid: str
    profile: str = ""
    group: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    recorded: RequestState = RequestState.INITIAL
    binding: RequestBinding | None = None
    reason: str = ""
    lease: Lease | None = None

    @property
    def instance(self) -> str | None:
        """The uuid of whose it is, or was last; None: nobody's ever."""
        return self.binding.instance_uuid if self.binding else None

    @property
    def state(self) -> RequestState:
        """How far it is."""
        return OF_LEASE[self.lease.state] if self.lease else self.recorded

    @property
    def is_made(self) -> bool:
        """Whether it was made of a profile, and is more than a lease."""
        return bool(self.properties)

    @property
    def is_resolved(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state in RESOLVED

    def allows(self, action: RequestAction) -> bool:
        """Whether this may be asked for now."""
        return self.state in LEGAL[action]


def uuid_from_api(given: object) -> str:
    """A uuid in its canonical form.

    :raises InvalidInput: it is none.
    """
    found = canonical_uuid(given)
    if found is None:
        raise exception.InvalidInput(f"{exception.show(given)} is no uuid")
    return found


def uuids_from_api(given: object) -> frozenset[str]:
    """Those of several requests.

    :raises InvalidInput: that is no list of uuids, or an empty one.
    """
    if not isinstance(given, list | tuple | set | frozenset) or not given:
        raise exception.InvalidInput(
            f"{exception.show(given)} is no list of accelerator requests"
        )
    return frozenset(uuid_from_api(each) for each in given)
