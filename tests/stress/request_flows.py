# SPDX-License-Identifier: Apache-2.0

"""Flows of accelerator requests that are killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from os_acc.attach.manager import Manager
from os_acc.attach.requests import Requests
from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost
from tests.stress.flows import GPU, INSTANCE, NIC, VF, Flow, by_name, plug_bystander


class RequestFlow(Flow):
    """Accelerator requests of two groups: a card with siblings, and a NIC.

    After any kill a request is Bound if, and only if, it has its device; the others can
    be bound again.
    """

    places: ClassVar[tuple[str, ...]] = (GPU, NIC)
    counts = frozenset({0, 2})

    def prepare(self, bench: TestHost) -> None:
        manager = plug_bystander(bench)
        offered = {str(each.device.address): each for each in manager.providers()}
        groups = [
            {f"resources:{offered[place].device.resource_class}": "1"}
            for place in self.places
        ]
        profiles = bench.directory / "profiles"
        profiles.mkdir()
        made = [{"name": "one", "groups": groups}]
        (profiles / "one.yaml").write_text(json.dumps(made))
        _book(manager).create("one")

    def resume(self, bench: TestHost, manager: Manager) -> None:
        book = _book(manager)
        made = self._check(book)
        if any(each.state is not RequestState.BOUND for each in made):
            book.unbind([each.uuid for each in made])
            self._bind(manager)
        assert {each.state for each in self._check(book)} == {RequestState.BOUND}

    def _bind(self, manager: Manager) -> None:
        offered = {str(each.device.address): each for each in manager.providers()}
        book = _book(manager)
        book.bind(
            {
                each.uuid: {
                    "hostname": "host",
                    "device_rp_uuid": offered[self.places[each.group or 0]].uuid,
                    "instance_uuid": INSTANCE,
                }
                for each in self._made(book)
            }
        )

    def _unbind(self, manager: Manager) -> None:
        book = _book(manager)
        book.unbind([each.uuid for each in self._made(book)])

    @staticmethod
    def _made(book: Requests) -> list[AcceleratorRequest]:
        return [each for each in book.find() if each.profile]

    def _check(self, book: Requests) -> list[AcceleratorRequest]:
        made = self._made(book)
        assert len(made) == len(self.places), "a request is lost"
        for each in made:
            bound = each.state is RequestState.BOUND
            assert bound == (
                each.lease is not None and each.lease.state is LeaseState.HELD
            )
            resting = RequestState.INITIAL, RequestState.UNBOUND
            assert bound or each.state in (*resting, RequestState.BIND_FAILED), each
        return made


class Bind(RequestFlow):
    name = "bind of two requests"

    def run(self, manager: Manager) -> None:
        self._bind(manager)


class Unbind(RequestFlow):
    """Each request has its whole device, or none of it."""

    name = "unbind of two requests"
    counts = frozenset({0, 1, 2})

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        self._bind(bench.start_here())

    def run(self, manager: Manager) -> None:
        self._unbind(manager)


class SwapBound(RequestFlow):
    """The device of one request is replaced; both stay bound."""

    name = "a bound device that is not in the guest's cell"
    counts = frozenset({2})

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        kernel = bench.kernel
        node = kernel.path("sys/bus/pci/devices", VF, "numa_node")
        kernel.write(node, "1")
        self._bind(bench.start_here())

    def run(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE, "numa_cells": [0]}, None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        uuids = {each.uuid for each in self._check(_book(manager))}
        entries = manager.plug({"uuid": INSTANCE, "numa_cells": [0]}, None, None)
        assert {each["uuid"] for each in entries} == uuids
        assert {each["numa_affinity"] for each in entries} == {"local"}
        super().resume(bench, manager)


FLOWS: Mapping[str, Flow] = by_name(Bind, Unbind, SwapBound)


def _book(manager: Manager) -> Requests:
    return Requests(manager, manager.profiles.source)
