# SPDX-License-Identifier: Apache-2.0

"""A cloud whose services answer from memory, with any answer if required.

Nothing is sent: :class:`Cloud` replaces the transport between requests and
urllib3, so that all of keystoneauth1 and os_acc takes part.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import requests
import urllib3
from oslo_config import cfg

from os_acc.attach import external_events
from os_acc.attach.external_events import NovaEvents
from os_acc.bitstreams import glance
from os_acc.bitstreams.glance import Glance
from os_acc.objects.accelerator_request import (
    AcceleratorRequest,
    RequestBinding,
    RequestState,
)
from os_acc.placement import client as placement
from os_acc.placement.client import Client
from os_acc.profiles import flavors, sources
from os_acc.profiles.flavors import Flavors
from os_acc.profiles.sources import Cyborg
from os_acc.rest.client import Service
from tests.unit import keystone_double
from tests.unit.placement.placement_double import NODE, Double, Provider
from tests.unit.placement.publishing import ONE, TWO
from tests.unit.placement.publishing import Service as Publishing
from tests.unit.profiles.profile_examples import profile

URL: Final = "http://cloud.invalid"
IMAGE: Final = "d5ca2f11-3108-4426-a11c-a959987565df"
_PARTS: Final = ("image", "placement", "accelerator", "compute")
#: More than any call needs: a call that repeats requests endlessly fails.
_MOST_REQUESTS: Final = 400

#: The status, the body as sent, and header fields.
Answer = tuple[int, bytes, dict[str, str]]
#: Makes an answer from the correct one, a value of JSON.
Change = Callable[[int, str, int, Any], Answer]


def right(_number: int, _path: str, status: int, body: Any) -> Answer:
    """Answer correctly."""
    return status, b"" if body is None else json.dumps(body).encode(), {}


class Cloud:
    """Keystone, Glance, Placement, Cyborg and Nova.

    :ivar change: makes the sent answer from the correct one.
    :ivar asked: "method path" of the requests of the last call.
    """

    def __init__(self) -> None:
        self.change: Change = right
        self.asked: list[str] = []
        self.placement = Double()
        self._confs = {
            each.group.name: _conf(each)
            for each in (
                *(glance.SERVICE, placement.SERVICE),
                *(sources.SERVICE, flavors.SERVICE),
            )
        }

    def conf(self, service: Service) -> cfg.ConfigOpts:
        """Return the configuration of a service."""
        return self._confs[service.group.name]

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Answer requests from this object."""
        name = "requests.adapters.HTTPAdapter.send"
        with mock.patch(name, lambda adapter, sent, **_: self._send(adapter, sent)):
            yield
        self.placement.end()

    def reset(self) -> None:
        """Restore the first state."""
        self.asked.clear()
        double = self.placement
        double.providers = {NODE: Provider(NODE, "node1", None)}
        for each in (ONE, TWO):
            assert each.provider is not None
            made = Provider(each.uuid, each.provider.name, NODE, 1)
            made.inventories = {"PGPU": dict.fromkeys(_RECORD, 1)}
            made.traits = {"HW_NIC_SRIOV"}
            made.allocated = {IMAGE: {"PGPU": 1}} if each is ONE else {}
            double.providers[each.uuid] = made
        double.traits, double.classes = {"HW_NIC_SRIOV"}, {"VCPU", "PGPU"}

    def _send(
        self, adapter: requests.adapters.HTTPAdapter, sent: requests.PreparedRequest
    ) -> requests.Response:
        assert sent.headers["Accept-Encoding"] == "identity"
        path = sent.path_url
        self.asked.append(f"{sent.method} {path}")
        assert len(self.asked) <= _MOST_REQUESTS
        status, body = self._answered(sent.method or "", path, sent.body)
        number = len(self.asked) - 1
        status, data, headers = self.change(number, path, status, body)
        raw = urllib3.HTTPResponse(
            body=io.BytesIO(data),
            headers={"Content-Type": "application/json", **headers},
            status=status,
            preload_content=False,
            decode_content=False,
        )
        answer: requests.Response = adapter.build_response(sent, raw)
        if path.endswith("/auth/tokens"):
            answer.headers["X-Subject-Token"] = "a token"
        return answer

    def _answered(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        service, _, rest = path.lstrip("/").partition("/")
        match method, service, rest.partition("?")[0]:
            case "GET", "identity", _:
                return 200, keystone_double.version(URL)
            case "POST", "identity", _:
                kinds = ("image", "placement", "accelerator", "compute")
                return 201, keystone_double.token(
                    {kind: f"{URL}/{kind}" for kind in kinds}
                )
            case _, "placement", _:
                values = json.loads(body) if body else None
                return self.placement._answered(method, f"/{rest}", values)
            case _, "image", "v2/images":
                return 200, {"images": [_IMAGE]}
            case _, "image", _:
                return 200, _IMAGE
            case _, "accelerator", _:
                return 200, {"device_profiles": [profile(), profile("other")]}
            case "GET", "compute", "flavors":
                last = "marker" in urllib.parse.urlsplit(path).query
                listed = [] if last else [{"id": "7", "name": "m7"}]
                return 200, {"flavors": listed}
            case "POST", "compute", "os-server-external-events":
                sent = json.loads(body)["events"]
                return 207, {"events": [{**each, "code": 422} for each in sent]}
            case "DELETE", "compute", _:
                return 200, None
            case _, "compute", _:
                return 200, {"extra_specs": {"hw:x": "1", "trait_a_0:CUSTOM_B": "x"}}
        # A redirection may have any target.
        return 404, {}


_RECORD: Final = ("total", "reserved", "min_unit", "max_unit", "step_size")
_IMAGE: Final = {
    "id": IMAGE,
    "name": "image",
    "status": "active",
    "visibility": "public",
    "os_hidden": False,
    "owner": "service",
    "size": 4,
    "os_hash_algo": "sha512",
    "os_hash_value": "ab" * 64,
    "tags": ["FPGA"],
    "accel:function_id": "f",
}

_FAILED: Final = AcceleratorRequest(
    ONE.uuid,
    recorded=RequestState.BIND_FAILED,
    binding=RequestBinding("node1", ONE.uuid, IMAGE),
)


def _conf(service: Service) -> cfg.ConfigOpts:
    values = keystone_double.credentials(URL, "secret")
    delays = ("connect_retry_delay", "status_code_retry_delay")
    return keystone_double.config(service, {**values, **dict.fromkeys(delays, 0.001)})


def _soon() -> float:
    return time.monotonic() + 600.0


def _publish(cloud: Cloud) -> object:
    # The options that it makes itself are replaced by those of the cloud.
    service = Publishing(cloud.placement, client=_client(cloud))
    return service.sync(ONE, TWO, seconds=600.0)


def _client(cloud: Cloud) -> Client:
    return Client(cloud.conf(placement.SERVICE))


def _of_placement(
    call: str, /, *arguments: Any, **named: Any
) -> Callable[[Cloud], Any]:
    return lambda cloud: getattr(_client(cloud), call)(
        *arguments, deadline=_soon(), **named
    )


#: Each call to a service, by name.
CALLS: Final[dict[str, Callable[[Cloud], Any]]] = {
    "image": lambda cloud: Glance(cloud.conf(glance.SERVICE)).image(IMAGE, _soon()),
    "images": lambda cloud: list(
        Glance(cloud.conf(glance.SERVICE)).images({"tag": "FPGA"}, _soon())
    ),
    "profile": lambda cloud: Cyborg(cloud.conf(sources.SERVICE)).profile(
        "other", _soon()
    ),
    "profiles": lambda cloud: list(
        Cyborg(cloud.conf(sources.SERVICE)).checked(_soon())
    ),
    "flavor": lambda cloud: Flavors(cloud.conf(flavors.SERVICE)).apply(
        "m7", {"trait_a_1:CUSTOM_C": "required"}, "_a_", _soon()
    ),
    "events": lambda cloud: NovaEvents(cloud.conf(external_events.SERVICE)).notify(
        [_FAILED], _soon()
    ),
    "version": _of_placement("version"),
    "node": _of_placement("node", name="node1"),
    "tree": _of_placement("tree", NODE),
    "inventories": _of_placement("inventories", ONE.uuid),
    "traits": _of_placement("traits", ONE.uuid),
    "allocated": _of_placement("allocated", ONE.uuid),
    "aggregates": _of_placement("aggregates", ONE.uuid),
    "create": _of_placement("create", IMAGE, "made", NODE),
    "move": _of_placement("move", ONE.uuid, "made", NODE),
    "set_inventories": _of_placement("set_inventories", ONE.uuid, 1, {}),
    "set_traits": _of_placement("set_traits", ONE.uuid, 1, ["HW_NIC_SRIOV"]),
    "delete": _of_placement("delete", TWO.uuid),
    "publish": _publish,
}
