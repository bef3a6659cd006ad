# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: one accelerator of one group of a device profile."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Set
from typing import Final, Self

from os_acc import exception
from os_acc.objects.instance import canonical_uuid, consumer_uuid
from os_acc.objects.lease import Lease, LeaseState


class RequestState(enum.Enum):
    """The state of a request, in Cyborg's terms.

    A request with a lease derives its state from the lease; otherwise its state
    is recorded.
    """

    INITIAL = "Initial"
    BIND_STARTED = "BindStarted"
    BOUND = "Bound"
    BIND_FAILED = "BindFailed"
    UNBOUND = "Unbound"
    UNBIND_FAILED = "UnbindFailed"
    DELETING = "Deleting"


#: The state of a request by that of its lease.
OF_LEASE: Final[Mapping[LeaseState, RequestState]] = {
    LeaseState.PREPARING: RequestState.BIND_STARTED,
    LeaseState.HELD: RequestState.BOUND,
    LeaseState.RELEASING: RequestState.DELETING,
    LeaseState.ERASING: RequestState.DELETING,
    LeaseState.QUARANTINED: RequestState.UNBIND_FAILED,
}
#: Final states: Nova queries requests in these with ``bind_state=resolved``.
RESOLVED: Final = frozenset(
    {RequestState.BOUND, RequestState.BIND_FAILED, RequestState.DELETING}
)


class RequestAction(enum.Enum):
    """An action on a request."""

    BIND = "bind"
    UNBIND = "unbind"
    DELETE = "delete"


#: The states in which each action is allowed. As in Cyborg, a request that failed
#: to bind must be unbound before it is bound again, so that the failure is
#: acknowledged. A bound request must be unbound before it is deleted.
LEGAL: Final[Mapping[RequestAction, frozenset[RequestState]]] = {
    RequestAction.BIND: frozenset({RequestState.INITIAL, RequestState.UNBOUND}),
    RequestAction.UNBIND: frozenset(RequestState),
    RequestAction.DELETE: frozenset(
        {RequestState.INITIAL, RequestState.UNBOUND, RequestState.BIND_FAILED}
    ),
}


#: The fields of a binding, in Nova's terms.
BINDING: Final = ("hostname", "device_rp_uuid", "instance_uuid")
#: The optional field of a binding.
IMAGE: Final = "image_id"


@dataclasses.dataclass(frozen=True, slots=True)
class RequestBinding:
    """The target of a bound request, in Nova's terms.

    :ivar hostname: the compute node.
    :ivar device_rp_uuid: the resource provider.
    :ivar instance_uuid: the instance.
    :ivar image_id: the image that the instance boots, or ''. The lease records it,
        not the request; a repeated binding may name another one.
    """

    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    image_id: str = dataclasses.field(default="", compare=False)

    @classmethod
    def from_api(cls, uuid: object, given: object) -> Self:
        """Validate a binding passed by a caller.

        :param uuid: of the request, for the error message.
        :raises InvalidInput: the binding is invalid.
        """
        if not isinstance(given, Mapping) or set(given) - {IMAGE} != set(BINDING):
            raise exception.InvalidInput(
                f"the binding of {exception.show(uuid)} is {exception.show(given)}",
                hint=f"use the fields {', '.join(BINDING)}, and {IMAGE} if the "
                "instance boots an image",
            )
        hostname = given["hostname"]
        if not isinstance(hostname, str):
            raise exception.InvalidInput(
                f"{exception.show(hostname)} is not a host name"
            )
        image = given.get(IMAGE)
        if not isinstance(image, str | None):
            raise exception.InvalidInput(
                f"{IMAGE} of the binding of {exception.show(uuid)} is "
                f"{exception.show(image)}, not text"
            )
        return cls(
            hostname,
            uuid_from_api(given["device_rp_uuid"]),
            consumer_uuid(given["instance_uuid"]),
            image or "",
        )

    def is_same(self, other: RequestBinding) -> bool:
        """Return whether both bindings are equal apart from the host name."""
        return dataclasses.replace(self, hostname=other.hostname) == other


@dataclasses.dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A request for one accelerator.

    :ivar profile: the name of its device profile; '' for a request created by a
        plug from a flavor without profile.
    :ivar group: the index of its group in the profile; None: no profile.
    :ivar properties: the properties of the group at creation; the profile may
        have changed since. Empty for a request created by a plug.
    :ivar batch: the UUID of the create call; '' for a request created by a plug.
    :ivar batch_size: the number of requests that the call created.
    :ivar recorded: its state while there is no lease.
    :ivar binding: its current or last binding; None: never bound.
    :ivar reason: why binding failed, or empty.
    :ivar lease: its lease; None without one.
    """

    uuid: str
    profile: str = ""
    group: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    batch: str = ""
    batch_size: int = 0
    recorded: RequestState = RequestState.INITIAL
    binding: RequestBinding | None = None
    reason: str = ""
    lease: Lease | None = None

    @property
    def instance(self) -> str | None:
        """The uuid of its current or last instance; None: never bound."""
        return self.binding.instance_uuid if self.binding else None

    @property
    def state(self) -> RequestState:
        """The current state."""
        return OF_LEASE[self.lease.state] if self.lease else self.recorded

    @property
    def is_made(self) -> bool:
        """Whether it was created from a profile, not just derived from a lease."""
        return bool(self.properties)

    @property
    def is_resolved(self) -> bool:
        """Whether its state is final."""
        return self.state in RESOLVED

    def with_binding(self, binding: RequestBinding) -> AcceleratorRequest:
        """Return the request with a new binding, not yet bound."""
        return dataclasses.replace(
            self, recorded=RequestState.INITIAL, binding=binding, reason=""
        )

    def allows(self, action: RequestAction) -> bool:
        """Return whether an action is allowed in the current state."""
        return self.state in LEGAL[action]


def uuid_from_api(given: object) -> str:
    """Return a uuid in its canonical form.

    :raises InvalidInput: the value is not a uuid.
    """
    found = canonical_uuid(given)
    if found is None:
        raise exception.InvalidInput(f"{exception.show(given)} is not a UUID")
    return found


def uuids_from_api(given: object) -> frozenset[str]:
    """Return the uuids of several requests in canonical form.

    :raises InvalidInput: the value is not a list of uuids, or is empty.
    """
    if not isinstance(given, list | tuple | set | frozenset) or not given:
        raise exception.InvalidInput(
            f"{exception.show(given)} is not a list of accelerator requests"
        )
    return frozenset(uuid_from_api(each) for each in given)


def check_found(
    uuids: Set[str], found: Iterable[AcceleratorRequest], leases: Iterable[Lease]
) -> None:
    """Check that all of these requests were found.

    :param leases: those of the host; some are of plugs, without recorded requests.
    :raises NotFound: there is no such request.
    """
    for uuid in sorted(uuids - {each.uuid for each in found}):
        for lease in leases:
            if lease.request_uuid == uuid:
                raise exception.NotFound(
                    f"accelerator {uuid} was attached to instance {lease.consumer} by "
                    "a plug: it has no accelerator request, and no event",
                    hint=f"only 'os-acc unplug {lease.consumer}' releases it",
                    kind=exception.ObjectKind.REQUEST,
                )
        raise exception.NotFound(
            f"there is no accelerator request {uuid}",
            hint="'os-acc request list' lists the existing ones",
            kind=exception.ObjectKind.REQUEST,
        )
