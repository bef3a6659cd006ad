# SPDX-License-Identifier: Apache-2.0

"""Client of Placement's API: one request per function.

https://docs.openstack.org/api-ref/placement/. keystoneauth1 is imported at the
first request.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.published import NameKind, PlacementName, classes, traits
from os_acc.placement import options
from os_acc.placement.api_model import (
    Declined,
    ListedProvider,
    Microversion,
    Record,
    in_cycle,
)
from os_acc.rest import responses
from os_acc.rest.client import ServiceClient
from os_acc.rest.responses import JsonValue, ResponseMalformed, document

if TYPE_CHECKING:
    from requests import Response

_T = TypeVar("_T")

#: The first microversion in which ``reserved`` may equal ``total``. Nested
#: providers, the generation of a new provider, and error codes are older.
NEEDED: Final = Microversion(1, 26)
#: The newest microversion that this client supports.
NEWEST: Final = Microversion(1, 39)
#: The first microversion that can change the parent of a provider.
MOVES: Final = Microversion(1, 37)
_PARENT: Final = "parent_provider_uuid"
_FORBIDDEN: Final = 403

#: Names in one request, to limit the length of the URL.
_AT_ONCE: Final = 100


@dataclasses.dataclass(slots=True)
class RequestCount:
    """The number of requests that read, and that write."""

    reads: int = 0
    writes: int = 0


class Client:
    """A client of Placement.

    Every method may raise, in addition to its own errors:

    :raises ServiceUnavailable: Keystone or Placement do not answer, or not in time,
        or Placement does not support the microversion (TOO_OLD).
    :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
    :raises ServiceRefused: it rejects the request.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.count = RequestCount()
        self._link = ServiceClient(conf, options.SERVICE)
        self._version: Microversion | None = None

    # -- reading ---------------------------------------------------------------

    def version(self, deadline: float) -> Microversion:
        """Return the newest common microversion; requested once."""
        if self._version is None:
            self.count.reads += 1
            newest = self._asked("GET", "/", deadline, "read the API version", _newest)
            if newest < NEEDED:
                raise exception.ServiceUnavailable(
                    f"Placement supports only microversion {newest}; "
                    f"{NEEDED} is needed",
                    service=exception.ServiceType.PLACEMENT,
                    reason=exception.OutageReason.TOO_OLD,
                )
            self._version = min(newest, NEWEST)
        return self._version

    def node(self, deadline: float, **of: str) -> ListedProvider | None:
        """Return the provider with this ``name`` or ``uuid``, or None."""
        found = self._listed(deadline, **of)
        return found[0] if found else None

    def tree(self, root: str, deadline: float) -> tuple[ListedProvider, ...]:
        """Return all providers of a tree; empty if the tree does not exist."""
        return self._listed(deadline, in_tree=root)

    def inventories(
        self, provider: str, deadline: float
    ) -> tuple[int, Mapping[str, Record]]:
        """Return a provider's generation, and its inventories by resource class."""
        return self._read(
            f"/resource_providers/{provider}/inventories",
            deadline,
            lambda body: (
                body["resource_provider_generation"].integer(),
                {name: _record(each) for name, each in body["inventories"].items()},
            ),
        )

    def traits(self, provider: str, deadline: float) -> tuple[int, frozenset[str]]:
        """Return a provider's generation and traits."""
        return self._read(
            f"/resource_providers/{provider}/traits",
            deadline,
            lambda body: (
                body["resource_provider_generation"].integer(),
                _texts(body["traits"]),
            ),
        )

    def allocated(self, provider: str, deadline: float) -> frozenset[str]:
        """Return the resource classes of a provider that have allocations."""
        return self._read(
            f"/resource_providers/{provider}/allocations",
            deadline,
            lambda body: frozenset(
                name
                for _consumer, each in body["allocations"].items()
                for name, _amount in each["resources"].items()
            ),
        )

    def aggregates(self, provider: str, deadline: float) -> frozenset[str]:
        """Return the UUIDs of a provider's aggregates."""
        return self._read(
            f"/resource_providers/{provider}/aggregates",
            deadline,
            lambda body: _texts(body["aggregates"]),
        )

    def known(
        self, names: Collection[PlacementName], deadline: float
    ) -> frozenset[PlacementName]:
        """Return the names that exist in Placement."""
        known: set[PlacementName] = set()
        texts = sorted(each.text for each in names if each.kind is NameKind.TRAIT)
        for some in _parts(texts):
            asked = urllib.parse.urlencode({"name": f"in:{','.join(some)}"})
            known |= self._read(
                f"/traits?{asked}",
                deadline,
                lambda body: traits(_texts(body["traits"])),
            )
        if any(each.kind is NameKind.RESOURCE_CLASS for each in names):
            known |= self._read("/resource_classes", deadline, _classes)
        return frozenset(known & set(names))

    # -- writing ---------------------------------------------------------------

    def make_name(self, name: PlacementName, deadline: float) -> bool:
        """Create a custom class or trait; return whether it did not exist."""
        return self._write(
            "PUT",
            _path(name),
            deadline,
            f"create the {name}",
            lambda answer: answer.status_code == 201,
        )

    def delete_name(self, name: PlacementName, deadline: float) -> None:
        """Delete a custom class or trait that is not in use."""
        self._write("DELETE", _path(name), deadline, f"delete the {name}", _nothing)

    def create(self, uuid: str, name: str, parent: str, deadline: float) -> int:
        """Create a child provider, and return its generation."""
        return self._write(
            "POST",
            "/resource_providers",
            deadline,
            f"create {name}",
            lambda answer: document(answer)["generation"].integer(),
            {"uuid": uuid, "name": name, "parent_provider_uuid": parent},
        )

    def move(self, uuid: str, name: str, parent: str, deadline: float) -> None:
        """Change the parent of a provider; its generation stays."""
        body = {"name": name, "parent_provider_uuid": parent}
        self._write(
            "PUT",
            f"/resource_providers/{uuid}",
            deadline,
            f"move {name}",
            _nothing,
            body,
        )

    def set_inventories(
        self,
        provider: str,
        generation: int,
        inventories: Mapping[str, Record],
        deadline: float,
    ) -> int:
        """Replace all inventories of a provider, and return its new generation."""
        return self._replace(
            provider, generation, "inventories", dict(inventories), deadline
        )

    def set_traits(
        self, provider: str, generation: int, traits: Collection[str], deadline: float
    ) -> int:
        """Replace all traits of a provider, and return its new generation."""
        return self._replace(provider, generation, "traits", sorted(traits), deadline)

    def delete(self, provider: str, deadline: float) -> None:
        """Delete a provider without children and allocations."""
        path = f"/resource_providers/{provider}"
        self._write("DELETE", path, deadline, f"delete {provider}", _nothing)

    # -- requests ----------------------------------------------------------------

    def _replace(
        self, provider: str, generation: int, what: str, value: object, deadline: float
    ) -> int:
        return self._write(
            "PUT",
            f"/resource_providers/{provider}/{what}",
            deadline,
            f"set the {what} of {provider}",
            lambda answer: document(answer)["resource_provider_generation"].integer(),
            {"resource_provider_generation": generation, what: value},
        )

    def _listed(self, deadline: float, **asked: str) -> tuple[ListedProvider, ...]:
        path = f"/resource_providers?{urllib.parse.urlencode(asked)}"
        return self._read(
            path,
            deadline,
            lambda body: _nodes(body["resource_providers"]),
        )

    def _read(self, path: str, deadline: float, take: Callable[[JsonValue], _T]) -> _T:
        version = self.version(deadline)
        self.count.reads += 1
        return self._asked(
            "GET",
            path,
            deadline,
            f"read {path}",
            lambda answer: take(document(answer)),
            headers=_headers(version),
        )

    def _write(
        self,
        method: str,
        path: str,
        deadline: float,
        about: str,
        take: Callable[[Response], _T],
        body: object = None,
    ) -> _T:
        version = self.version(deadline)
        self.count.writes += 1
        arguments: dict[str, Any] = {} if body is None else {"json": body}
        return self._asked(
            method, path, deadline, about, take, headers=_headers(version), **arguments
        )

    def _asked(
        self,
        method: str,
        path: str,
        deadline: float,
        about: str,
        take: Callable[[Response], _T],
        **arguments: Any,
    ) -> _T:
        return self._link.ask(
            method,
            path,
            take,
            about,
            deadline,
            lambda answer: _refused(answer, about),
            **arguments,
        )


def _headers(version: Microversion) -> dict[str, str]:
    return {
        "Accept": "application/json",
        "OpenStack-API-Version": f"placement {version}",
    }


def _newest(answer: Response) -> Microversion:
    for each in document(answer)["versions"]:
        newest = each["max_version"]
        try:
            return Microversion.parse(newest.text())
        except ValueError as error:
            raise ResponseMalformed(
                f"{newest.path!r} is {exception.show(newest.found)}, not a microversion"
            ) from error
    raise ResponseMalformed("'versions' is empty")


def _nodes(listed: JsonValue) -> tuple[ListedProvider, ...]:
    """Return the providers of a listing, after a check for cycles."""
    nodes = tuple(
        ListedProvider(
            uuid=each["uuid"].uuid(),
            name=each["name"].text(),
            parent=parent.uuid() if (parent := each[_PARENT].optional()) else None,
            generation=each["generation"].integer(),
        )
        for each in listed
    )
    if cycle := in_cycle({node.uuid: node.parent for node in nodes}):
        raise ResponseMalformed(
            f"{listed.path!r} has a cycle: provider {cycle} is below itself"
        )
    return nodes


def _record(of: JsonValue) -> Record:
    """Return an inventory; Placement may omit fields with default values."""
    found: dict[str, int | float] = {
        name: of[name].integer() for name in ("total", "reserved")
    }
    for name in ("min_unit", "max_unit", "step_size"):
        if name in of:
            found[name] = of[name].integer()
    if "allocation_ratio" in of:
        found["allocation_ratio"] = of["allocation_ratio"].number()
    return found


def _texts(listed: JsonValue) -> frozenset[str]:
    return frozenset(each.text() for each in listed)


def _classes(body: JsonValue) -> frozenset[PlacementName]:
    return classes(each["name"].text() for each in body["resource_classes"])


def _nothing(answer: Response) -> None:
    del answer


def _path(name: PlacementName) -> str:
    kind = "traits" if name.kind is NameKind.TRAIT else "resource_classes"
    return f"/{kind}/{name.text}"


def _parts(names: list[str]) -> Iterator[list[str]]:
    for begin in range(0, len(names), _AT_ONCE):
        yield names[begin : begin + _AT_ONCE]


def _refused(answer: Response, about: str) -> exception.ServiceRefused:
    """Return the error for a rejected request.

    :param about: the operation: "make x".
    """
    code, detail = _rejection(answer)
    if code == "placement.concurrent_update":
        return exception.ServiceRefused(
            f"cannot {about}: {detail}",
            service=exception.ServiceType.PLACEMENT,
            reason=exception.RefusalReason.CONFLICT,
        )
    if answer.status_code == _FORBIDDEN:
        return Declined(
            f"Placement denies permission to {about}: {detail}",
            status=_FORBIDDEN,
            hint=f"give the user in [{options.GROUP.name}] the role service or admin",
        )
    return Declined(
        f"Placement rejects the request to {about}: {detail}", status=answer.status_code
    )


def _rejection(answer: Response) -> tuple[str, str]:
    """Return the code and the detail of a rejection.

    The code is empty, and the detail is HTTP's, if Placement did not send it.
    """
    try:
        error = next(iter(responses.document(answer)["errors"]))
        code = error["code"].text() if "code" in error else ""
    except (*responses.NOT_THEIRS, StopIteration):
        code = ""
    return code, responses.refusal(answer)
