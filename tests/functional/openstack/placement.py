# SPDX-License-Identifier: Apache-2.0

"""Placement, as used by its administrator, by Nova and by other services."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from typing import Any

from keystoneauth1.adapter import Adapter
from requests import Response

from os_acc.scheduling import allocation_candidates
from tests.functional.openstack.cloud import Cloud

#: The latest microversion of Placement 16.
NEWEST = "1.39"
#: (provider, resource class, amount) of each allocation of a candidate.
Taken = frozenset[tuple[str, str, int]]


class Refused(Exception):
    """Placement has rejected a request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """All of Placement's data of one provider.

    :ivar text: the answers, as they are sent.
    """

    uuid: str
    name: str
    parent: str | None
    generation: int
    inventories: Mapping[str, Mapping[str, Any]]
    traits: frozenset[str]
    text: str


class Placement:
    """The running service, and requests to it from outside os_acc."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.service = cloud.placement
        self.http = Adapter(
            cloud.login("nova", "service"),
            service_type="placement",
            interface="public",
            default_microversion=NEWEST,
            raise_exc=False,
        )

    # -- reading requests -----------------------------------------------------------

    def get(self, path: str) -> Any:
        """Return the answer to a GET request.

        :raises Refused: the status is an error.
        """
        return _checked(self.http.get(path)).json()

    def tree(self, root: str) -> dict[str, Known]:
        """Return every provider in a tree, by its name."""
        found = self.get(f"/resource_providers?in_tree={root}")["resource_providers"]
        return {each["name"]: self.known(each["uuid"]) for each in found}

    def known(self, rp: str) -> Known:
        """Return all data of one provider."""
        path = f"/resource_providers/{rp}"
        answers = [
            self.get(path + part)
            for part in ("", "/inventories", "/traits", "/aggregates", "/allocations")
        ]
        about, inventories, traits, *_ = answers
        return Known(
            uuid=rp,
            name=about["name"],
            parent=about["parent_provider_uuid"],
            generation=about["generation"],
            inventories=inventories["inventories"],
            traits=frozenset(traits["traits"]),
            text=json.dumps(answers, sort_keys=True),
        )

    def has(self, path: str) -> bool:
        """Return whether the object at a path exists."""
        return self.http.get(path).status_code < 300

    def candidates(self, query: str) -> Any:
        """Return ``GET /allocation_candidates``, with Nova's microversion.

        :raises Refused: Placement has rejected the query.
        """
        return _checked(self._ask(query)).json()

    def status(self, query: str) -> int:
        """Return the status of a query that is sent unchanged."""
        status: int = self._ask(query).status_code
        return status

    def _ask(self, query: str) -> Response:
        return self.http.get(
            f"/allocation_candidates?{query}",
            microversion=allocation_candidates.MICROVERSION,
        )

    # -- actions of other services --------------------------------------------------

    def make(
        self,
        name: str,
        parent: str | None = None,
        inventories: Mapping[str, int] | None = None,
        traits: tuple[str, ...] = (),
        rp: str | None = None,
    ) -> str:
        """Create a provider with inventories and traits; return its uuid.

        Custom classes and traits of other services are created, too.
        """
        rp = rp or str(uuid.uuid4())
        about = {"name": name, "uuid": rp, "parent_provider_uuid": parent}
        _checked(self.http.post("/resource_providers", json=about))
        if inventories:
            self.set_inventories(rp, inventories)
        if traits:
            self.set_traits(rp, *traits)
        return rp

    def set_inventories(self, rp: str, inventories: Mapping[str, int]) -> None:
        """Set exactly these inventories of a provider."""
        for name in inventories:
            if name.startswith("CUSTOM_"):
                _checked(self.http.put(f"/resource_classes/{name}"))
        path = f"/resource_providers/{rp}/inventories"
        body = {
            "resource_provider_generation": self._generation(rp),
            "inventories": {name: {"total": n} for name, n in inventories.items()},
        }
        _checked(self.http.put(path, json=body))

    def set_traits(self, rp: str, *traits: str) -> None:
        """Set exactly these traits of a provider."""
        for name in traits:
            if name.startswith("CUSTOM_"):
                _checked(self.http.put(f"/traits/{name}"))
        body = {
            "resource_provider_generation": self._generation(rp),
            "traits": list(traits),
        }
        _checked(self.http.put(f"/resource_providers/{rp}/traits", json=body))

    def set_aggregates(self, rp: str, *aggregates: str) -> None:
        """Set exactly these aggregates of a provider."""
        body = {
            "resource_provider_generation": self._generation(rp),
            "aggregates": list(aggregates),
        }
        _checked(self.http.put(f"/resource_providers/{rp}/aggregates", json=body))

    def allocate(
        self, allocations: Mapping[str, Mapping[str, int]], consumer: str | None = None
    ) -> str:
        """Allocate amounts of providers to a consumer; return its uuid.

        :raises Refused: the capacity is insufficient.
        """
        consumer = consumer or str(uuid.uuid4())
        body = {
            "allocations": {
                rp: {"resources": dict(amounts)} for rp, amounts in allocations.items()
            },
            "project_id": str(uuid.uuid4()),
            "user_id": str(uuid.uuid4()),
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        _checked(self.http.put(f"/allocations/{consumer}", json=body))
        return consumer

    def free(self, consumer: str) -> None:
        """Delete all allocations of a consumer."""
        _checked(self.http.delete(f"/allocations/{consumer}"))

    def remove(self, *providers: str) -> None:
        """Delete providers, in this order."""
        for rp in providers:
            _checked(self.http.delete(f"/resource_providers/{rp}"))

    def _generation(self, rp: str) -> int:
        generation: int = self.get(f"/resource_providers/{rp}")["generation"]
        return generation


def _checked(answer: Response) -> Response:
    if answer.status_code >= 300:
        raise Refused(f"{answer.request.method} {answer.url}: {answer.text}")
    return answer
