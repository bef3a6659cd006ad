# SPDX-License-Identifier: Apache-2.0

"""Placement's API: the options of the connection, and one request per function.

https://docs.openstack.org/api-ref/placement/. keystoneauth1 is imported at the
first request.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.records import NameKind, PlacementName, classes, traits
from os_acc.placement.changes import ListedProvider, Record
from os_acc.rest import responses
from os_acc.rest.client import Service, ServiceClient
from os_acc.rest.responses import JsonValue, ResponseMalformed, document

if TYPE_CHECKING:
    from requests import Response

_T = TypeVar("_T")

#: The first microversion in which ``reserved`` may equal ``total``. Nested
#: providers, the generation of a new provider, and error codes are older.
NEEDED: Final = (1, 26)
#: The newest microversion that this client supports.
NEWEST: Final = (1, 39)
#: The first microversion that can change the parent of a provider.
MOVES: Final = (1, 37)
_MICROVERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")
_PARENT: Final = "parent_provider_uuid"
_FORBIDDEN: Final = 403

#: Names in one request, to limit the length of the URL.
_AT_ONCE: Final = 100


class Declined(exception.ServiceRefused):
    """Placement rejects a request.

    :ivar status: the HTTP status.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, service=exception.ServiceType.PLACEMENT, hint=hint)
        self.status = status


class ServerFailed(exception.ServiceUnavailable):
    """Placement reports a failure of its own; other requests may succeed."""


GROUP = cfg.OptGroup(
    "os_acc_placement",
    title="Placement, for direct publication by os_acc",
    help="Endpoint and credentials of Placement for 'os-acc provider sync' and "
    "os_acc.sync_placement(). auth_section can name another section with these "
    "credentials, such as [placement]. A site where Nova's virt driver calls "
    "os_acc.update_provider_tree() does not need this section.",
)

SERVICE: Final = Service(
    name="Placement",
    group=GROUP,
    version="",
    spoken="the microversion is negotiated with the server",
    service_type=exception.ServiceType.PLACEMENT,
    failing=ServerFailed,
    patience=f"[{GROUP.name}] sync_timeout",
)

OWN: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "node_provider",
        help="Name or UUID of this compute node's resource provider, the parent "
        "of os_acc's providers. Default: [os_acc] node_name.",
    ),
    cfg.FloatOpt(
        "sync_timeout",
        default=120.0,
        min=1.0,
        max=86_400.0,
        help="Seconds after which one synchronization with Placement stops; the "
        "next one continues.",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The options of os_acc in this section.

    :ivar node_provider: the parent provider; '' for the node's name.
    """

    node_provider: str
    sync_timeout: float

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options, without those of keystoneauth1.

        :raises InvalidConfiguration: a value cannot be used.
        """
        # See os_acc.conf.register().
        conf.register_group(copy.deepcopy(GROUP))
        conf.register_opts(OWN, group=GROUP.name)
        try:
            group = conf[GROUP.name]
            seconds = group.sync_timeout
            name = group.node_provider or ""
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error
        if seconds is None or math.isnan(seconds):
            raise exception.InvalidConfiguration(
                f"[{GROUP.name}] sync_timeout is {exception.show(seconds)}, not a "
                "number of seconds"
            )
        return cls(name, seconds)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; registering twice is harmless."""
    SERVICE.register(conf)
    conf.register_opts(OWN, group=GROUP.name)


def list_opts() -> list[cfg.Opt]:
    """Return the options for oslo-config-generator."""
    return [*OWN, *SERVICE.list_opts()]


class Client:
    """A client of Placement.

    Every method may raise, in addition to its own errors:

    :raises ServiceUnavailable: Keystone or Placement do not answer, or not in time,
        or Placement does not support the microversion (TOO_OLD).
    :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
    :raises ServiceRefused: it rejects the request.

    :param conf: the configuration, read at the first request.
    :ivar reads: the number of requests that read; ``writes``: that change.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.reads = self.writes = 0
        self._link = ServiceClient(conf, SERVICE)
        self._version: tuple[int, int] | None = None

    # -- reading ---------------------------------------------------------------

    def version(self, deadline: float) -> tuple[int, int]:
        """Return the newest common microversion; requested once."""
        if self._version is None:
            about = "read the API version"
            newest = self._ask("GET", "/", deadline, _newest, about)
            if newest < NEEDED:
                raise exception.ServiceUnavailable(
                    f"Placement supports only microversion {_text(newest)}; "
                    f"{_text(NEEDED)} is needed",
                    service=exception.ServiceType.PLACEMENT,
                    reason=exception.OutageReason.TOO_OLD,
                )
            self._version = min(newest, NEWEST)
        return self._version

    def node(self, deadline: float, **of: str) -> ListedProvider | None:
        """Return the provider with this ``name`` or ``uuid``, or None."""
        return next(iter(self._listed(deadline, **of)), None)

    def tree(self, root: str, deadline: float) -> tuple[ListedProvider, ...]:
        """Return all providers of a tree; empty if the tree does not exist."""
        return self._listed(deadline, in_tree=root)

    def inventories(
        self, provider: str, deadline: float
    ) -> tuple[int, Mapping[str, Record]]:
        """Return a provider's generation, and its inventories by resource class."""

        def take(body: JsonValue) -> tuple[int, Mapping[str, Record]]:
            found = body["inventories"].items()
            return _generation(body), {name: _record(each) for name, each in found}

        return self._read(f"/resource_providers/{provider}/inventories", deadline, take)

    def traits(self, provider: str, deadline: float) -> tuple[int, frozenset[str]]:
        """Return a provider's generation and traits."""
        return self._read(
            f"/resource_providers/{provider}/traits",
            deadline,
            lambda body: (_generation(body), _texts(body["traits"])),
        )

    def allocated(self, provider: str, deadline: float) -> frozenset[str]:
        """Return the resource classes of a provider that have allocations."""

        def take(body: JsonValue) -> frozenset[str]:
            return frozenset(
                name
                for _consumer, each in body["allocations"].items()
                for name, _amount in each["resources"].items()
            )

        return self._read(f"/resource_providers/{provider}/allocations", deadline, take)

    def aggregates(self, provider: str, deadline: float) -> frozenset[str]:
        """Return the UUIDs of a provider's aggregates."""
        path = f"/resource_providers/{provider}/aggregates"
        return self._read(path, deadline, lambda body: _texts(body["aggregates"]))

    def existing(
        self, names: Collection[PlacementName], deadline: float
    ) -> frozenset[PlacementName]:
        """Return the names that exist in Placement."""
        found: set[PlacementName] = set()
        texts = sorted(each.text for each in names if each.kind is NameKind.TRAIT)
        for begin in range(0, len(texts), _AT_ONCE):
            some = ",".join(texts[begin : begin + _AT_ONCE])
            path = f"/traits?{urllib.parse.urlencode({'name': f'in:{some}'})}"
            found |= traits(
                self._read(path, deadline, lambda body: _texts(body["traits"]))
            )
        if any(each.kind is NameKind.RESOURCE_CLASS for each in names):
            found |= classes(
                self._read(
                    "/resource_classes",
                    deadline,
                    lambda body: [
                        each["name"].text() for each in body["resource_classes"]
                    ],
                )
            )
        return frozenset(found & set(names))

    # -- writing ---------------------------------------------------------------

    def make_name(self, name: PlacementName, deadline: float) -> bool:
        """Create a custom class or trait; return whether it did not exist."""
        about = f"create the {name}"
        return self._ask("PUT", _path(name), deadline, _is_new, about)

    def delete_name(self, name: PlacementName, deadline: float) -> None:
        """Delete a custom class or trait that is not in use."""
        self._ask("DELETE", _path(name), deadline, _nothing, f"delete the {name}")

    def create(self, uuid: str, name: str, parent: str, deadline: float) -> int:
        """Create a child provider, and return its generation."""
        return self._ask(
            "POST",
            "/resource_providers",
            deadline,
            lambda answer: document(answer)["generation"].integer(),
            f"create {name}",
            {"uuid": uuid, "name": name, _PARENT: parent},
        )

    def move(self, uuid: str, name: str, parent: str, deadline: float) -> None:
        """Change the parent of a provider; its generation stays."""
        body = {"name": name, _PARENT: parent}
        path = f"/resource_providers/{uuid}"
        self._ask("PUT", path, deadline, _nothing, f"move {name}", body)

    def set_inventories(
        self,
        provider: str,
        generation: int,
        inventories: Mapping[str, Record],
        deadline: float,
    ) -> int:
        """Replace all inventories of a provider, and return its new generation."""
        records = dict(inventories)
        return self._replace(provider, generation, "inventories", records, deadline)

    def set_traits(
        self, provider: str, generation: int, traits: Collection[str], deadline: float
    ) -> int:
        """Replace all traits of a provider, and return its new generation."""
        return self._replace(provider, generation, "traits", sorted(traits), deadline)

    def delete(self, provider: str, deadline: float) -> None:
        """Delete a provider without children and allocations."""
        path = f"/resource_providers/{provider}"
        self._ask("DELETE", path, deadline, _nothing, f"delete {provider}")

    # -- requests ----------------------------------------------------------------

    def _replace(
        self, provider: str, generation: int, what: str, value: object, deadline: float
    ) -> int:
        return self._ask(
            "PUT",
            f"/resource_providers/{provider}/{what}",
            deadline,
            lambda answer: _generation(document(answer)),
            f"set the {what} of {provider}",
            {"resource_provider_generation": generation, what: value},
        )

    def _listed(self, deadline: float, **asked: str) -> tuple[ListedProvider, ...]:
        path = f"/resource_providers?{urllib.parse.urlencode(asked)}"
        return self._read(path, deadline, _nodes)

    def _read(self, path: str, deadline: float, take: Callable[[JsonValue], _T]) -> _T:
        return self._ask(
            "GET", path, deadline, lambda answer: take(document(answer)), f"read {path}"
        )

    def _ask(
        self,
        method: str,
        path: str,
        deadline: float,
        take: Callable[[Response], _T],
        about: str,
        body: object = None,
    ) -> _T:
        arguments: dict[str, Any] = {} if body is None else {"json": body}
        if path != "/":
            arguments["headers"] = {
                "Accept": "application/json",
                "OpenStack-API-Version": f"placement {_text(self.version(deadline))}",
            }
        if method == "GET":
            self.reads += 1
        else:
            self.writes += 1
        return self._link.ask(
            method,
            path,
            take,
            about,
            deadline,
            lambda answer: _refused(answer, about),
            **arguments,
        )


def _text(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def _newest(answer: Response) -> tuple[int, int]:
    for each in document(answer)["versions"]:
        newest = each["max_version"]
        if match := _MICROVERSION.fullmatch(newest.text()):
            return int(match[1]), int(match[2])
        raise ResponseMalformed(
            f"{newest.path!r} is {exception.show(newest.found)}, not a microversion"
        )
    raise ResponseMalformed("'versions' is empty")


def _nodes(body: JsonValue) -> tuple[ListedProvider, ...]:
    """Return the providers of a listing, after a check for cycles."""
    listed = body["resource_providers"]
    nodes = tuple(
        ListedProvider(
            uuid=each["uuid"].uuid(),
            name=each["name"].text(),
            parent=parent.uuid() if (parent := each[_PARENT].optional()) else None,
            generation=each["generation"].integer(),
        )
        for each in listed
    )
    left = {node.uuid: node.parent for node in nodes}
    while roots := [uuid for uuid, parent in left.items() if parent not in left]:
        for uuid in roots:
            del left[uuid]
    if left:
        raise ResponseMalformed(
            f"{listed.path!r} has a cycle: provider {min(left)} is below itself"
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


def _generation(body: JsonValue) -> int:
    return body["resource_provider_generation"].integer()


def _texts(listed: JsonValue) -> frozenset[str]:
    return frozenset(each.text() for each in listed)


def _is_new(answer: Response) -> bool:
    return answer.status_code == 201


def _nothing(answer: Response) -> None:
    del answer


def _path(name: PlacementName) -> str:
    kind = "traits" if name.kind is NameKind.TRAIT else "resource_classes"
    return f"/{kind}/{name.text}"


def _refused(answer: Response, about: str) -> exception.ServiceRefused:
    """Return the error for a rejected request.

    :param about: the operation: "make x".
    """
    detail = responses.refusal(answer)
    if _code(answer) == "placement.concurrent_update":
        return exception.ServiceRefused(
            f"cannot {about}: {detail}",
            service=exception.ServiceType.PLACEMENT,
            reason=exception.RefusalReason.CONFLICT,
        )
    if answer.status_code == _FORBIDDEN:
        return Declined(
            f"Placement denies permission to {about}: {detail}",
            status=_FORBIDDEN,
            hint=f"give the user in [{GROUP.name}] the role service or admin",
        )
    return Declined(
        f"Placement rejects the request to {about}: {detail}", status=answer.status_code
    )


def _code(answer: Response) -> str:
    """Return the code of a rejection; empty if Placement did not send it."""
    try:
        error = next(iter(document(answer)["errors"]))
        return error["code"].text() if "code" in error else ""
    except (*responses.NOT_THEIRS, StopIteration):
        return ""
