# SPDX-License-Identifier: Apache-2.0

"""Nova's resource tracker and report client, and Placement, in this process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from nova import context, objects, test
from nova.compute import resource_tracker
from nova.scheduler.client import report
from nova.tests.functional import fixtures as functional_fixtures
from nova.virt import fake
from oslo_utils import uuidutils

NODE, NODE_UUID = "node1", "10000000-9999-4999-8999-999999999999"
PROJECT = "20000000-9999-4999-8999-999999999999"
#: The latest microversion of Placement 16.
NEWEST = "1.39"

#: ``update_provider_tree`` of a virt driver, with os_acc's signature.
Update = Callable[[Any, str], None]


class _Driver(fake.FakeDriver):  # type: ignore[misc]
    """Publishes processors, memory and disk, and lets os_acc add to the tree."""

    #: Without Nova's PCI tracker, these capabilities are not available.
    capabilities = fake.FakeDriver.capabilities | {
        "supports_remote_managed_ports": False
    }
    update: Update

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        super().update_provider_tree(provider_tree, nodename, allocations)
        self.update(provider_tree, nodename)


class Nova(test.TestCase):  # type: ignore[misc]
    """A compute node with nova-compute's own client of Placement.

    :ivar update: what its virt driver calls, from the next start on.
    :param config: the directory of nova-compute's provider configuration.
    """

    def __init__(self, update: Update, config: Path) -> None:
        super().__init__()
        self.update = update
        self._provider_config = config

    def setUp(self) -> None:
        super().setUp()
        self.flags(provider_config_location=str(self._provider_config), group="compute")
        self._http = self.useFixture(functional_fixtures.PlacementFixture())
        self.start()

    def runTest(self) -> None:
        """Do nothing: the tests are in other classes."""

    # -- actions of nova-compute --------------------------------------------------

    def start(self) -> None:
        """Start nova-compute without earlier state, and publish."""
        driver = _Driver(None)
        driver.update = self.update
        driver.init_host(NODE)
        self._tracker = resource_tracker.ResourceTracker(
            NODE, driver, report.SchedulerReportClient()
        )
        self.cycle(startup=True)

    def cycle(self, *, startup: bool = False) -> None:
        """Publish, as nova-compute does once a minute and in each claim."""
        node = objects.ComputeNode(uuid=NODE_UUID, hypervisor_hostname=NODE)
        self._tracker._update_to_placement(context.get_admin_context(), node, startup)

    def configure(self, classes: Mapping[str, Mapping[str, int]]) -> None:
        """Add classes to providers with a provider.yaml, from the next start on.

        :param classes: by the UUID or the name of the provider.
        """
        providers = [
            {
                "identification": {
                    "uuid" if uuidutils.is_uuid_like(provider) else "name": provider
                },
                "inventories": {
                    "additional": [{name: _record(n)} for name, n in added.items()]
                },
            }
            for provider, added in classes.items()
        ]
        content = {"meta": {"schema_version": "1.0"}, "providers": providers}
        (self._provider_config / "provider.yaml").write_text(yaml.safe_dump(content))

    # -- contents of Placement ----------------------------------------------------

    def get(self, path: str) -> Any:
        """Return the answer to a GET request."""
        found = self._http._fake_get(None, path, version=NEWEST)
        assert found.status_code == 200, found.text
        return found.json()

    def text(self, provider: str) -> str:
        """Return all of Placement's data of a provider, as text."""
        path = f"/resource_providers/{provider}"
        parts = ("", "/inventories", "/traits", "/aggregates", "/allocations")
        return json.dumps([self.get(path + part) for part in parts], sort_keys=True)

    def tree(self) -> dict[str, Any]:
        """Return the providers of the node, by name."""
        found = self.get(f"/resource_providers?in_tree={NODE_UUID}")
        return {each["name"]: each for each in found["resource_providers"]}

    def units(self, provider: str) -> dict[str, tuple[int, int]]:
        """Return (total, reserved) of each class of a provider."""
        found = self.get(f"/resource_providers/{provider}/inventories")["inventories"]
        return {name: (each["total"], each["reserved"]) for name, each in found.items()}

    def traits(self, provider: str) -> frozenset[str]:
        """Return the traits of a provider."""
        found = self.get(f"/resource_providers/{provider}/traits")
        return frozenset(found["traits"])

    # -- actions of other services ------------------------------------------------

    def make(
        self,
        name: str,
        parent: str | None,
        classes: Mapping[str, int],
        *traits: str,
        aggregate: str = "",
    ) -> str:
        """Create a provider with inventories and traits; return its uuid."""
        made = str(uuid.uuid4())
        about = {"name": name, "uuid": made, "parent_provider_uuid": parent}
        self._write("post", "/resource_providers", about)
        self.set_classes(made, classes)
        self.set_traits(made, *traits)
        if aggregate:
            self._write(
                "put",
                f"/resource_providers/{made}/aggregates",
                {"aggregates": [aggregate]} | self._generation(made),
            )
        return made

    def set_classes(self, provider: str, classes: Mapping[str, int]) -> None:
        """Set exactly these classes of a provider."""
        for name in classes:
            if name.startswith("CUSTOM_"):
                self._write("put", f"/resource_classes/{name}", None)
        self._write(
            "put",
            f"/resource_providers/{provider}/inventories",
            {"inventories": {name: _record(n) for name, n in classes.items()}}
            | self._generation(provider),
        )

    def set_traits(self, provider: str, *traits: str) -> None:
        """Set exactly these traits of a provider."""
        for name in traits:
            if name.startswith("CUSTOM_"):
                self._write("put", f"/traits/{name}", None)
        self._write(
            "put",
            f"/resource_providers/{provider}/traits",
            {"traits": list(traits)} | self._generation(provider),
        )

    def allocate(self, taken: Mapping[str, Mapping[str, int]]) -> str:
        """Allocate these amounts to an instance; return its uuid."""
        consumer = str(uuid.uuid4())
        self._write(
            "put",
            f"/allocations/{consumer}",
            {
                "allocations": {
                    provider: {"resources": dict(amounts)}
                    for provider, amounts in taken.items()
                },
                "project_id": PROJECT,
                "user_id": PROJECT,
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
        )
        return consumer

    def _generation(self, provider: str) -> dict[str, int]:
        about = self.get(f"/resource_providers/{provider}")
        return {"resource_provider_generation": about["generation"]}

    def _write(self, how: str, path: str, body: object) -> None:
        send = {"put": self._http._fake_put, "post": self._http._fake_post}[how]
        answer = send(None, path, body, version=NEWEST)
        assert answer.status_code < 300, answer.text


def _record(total: int) -> dict[str, Any]:
    return {
        "total": total,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }
