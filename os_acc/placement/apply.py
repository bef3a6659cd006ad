# SPDX-License-Identifier: Apache-2.0

"""Application of a plan to Placement."""

from __future__ import annotations

import dataclasses
from typing import Any

from oslo_log import log

from os_acc import exception
from os_acc.objects.published import NameKind, PlacementName, PublishedNames
from os_acc.placement.api_model import EMPTY, Declined, ProviderContents, ServerFailed
from os_acc.placement.api_tree import PlacementTree
from os_acc.placement.changes import (
    Create,
    DeleteName,
    MakeName,
    Move,
    RefusedChange,
    Remove,
    SetInventories,
    SetTraits,
    Step,
)
from os_acc.placement.published import PublishedRecord

LOG = log.getLogger(__name__)

_BAD_REQUEST, _NOT_FOUND, _CONFLICT = 400, 404, 409


class Application:
    """Carry out steps; one that fails does not stop the others.

    :ivar done: the steps that Placement carried out.
    :ivar refused: the steps that Placement rejected for good.
    :ivar again: the steps to plan anew from the current state.
    :ivar disowned: names that os_acc did not create, or has deleted.
    :ivar in_use: the names that others use.
    """

    def __init__(self, tree: PlacementTree, record: PublishedRecord) -> None:
        self.done: list[Step] = []
        self.refused: list[RefusedChange] = []
        self.again: list[RefusedChange] = []
        self.disowned: set[PlacementName] = set()
        self.in_use: set[PlacementName] = set()
        self._tree = tree
        self._record = record
        #: Providers (by UUID) and names whose further steps are skipped.
        self._blocked: set[str | PlacementName] = set()

    def carry_out(self, step: Step) -> None:
        """Carry out a step, unless a step failed on which it depends.

        :raises OsAccError: Placement does not answer, or denies access.
        """
        subject = step.name if isinstance(step, MakeName | DeleteName) else step.uuid
        parent = step.parent if isinstance(step, Create | Move) else subject
        if not self._blocked.isdisjoint({subject, parent}):
            return
        try:
            self._send(step)
        except (exception.ServiceRefused, ServerFailed) as error:
            # After a failure of the server, the outcome is unknown.
            LOG.debug("cannot %s: %s", step, error)
            status = error.status if isinstance(error, Declined) else None
            if isinstance(step, DeleteName) and status is not None:
                names = self.disowned if status == _NOT_FOUND else self.in_use
                names.add(step.name)
                return
            is_final = status is not None and not _is_stale(step, status)
            (self.refused if is_final else self.again).append(
                RefusedChange(str(step), error)
            )
            self._blocked.add(subject)
        else:
            self.done.append(step)

    def _send(self, step: Step) -> None:
        client, deadline = self._tree.client, self._tree.deadline
        match step:
            case MakeName():
                if client.make_name(step.name, deadline):
                    # Recorded after the request: a name that another service creates
                    # is not ours. Recorded at once: a crash would leave the name
                    # unowned.
                    self._record.change_published_names(
                        PublishedNames(created=frozenset({step.name}))
                    )
                else:
                    self.disowned.add(step.name)
                self._tree.names.add(step.name)
            case DeleteName():
                client.delete_name(step.name, deadline)
                self.disowned.add(step.name)
                self._tree.names.discard(step.name)
            case Create():
                generation = client.create(step.uuid, step.name, step.parent, deadline)
                self._keep(step.uuid, generation=generation)
            case Move():
                client.move(step.uuid, step.name, step.parent, deadline)
            case SetTraits():
                self._set_traits(step)
            case SetInventories():
                self._set_inventories(step)
            case Remove():
                client.delete(step.uuid, deadline)
                del self._tree.contents[step.uuid]

    def _set_traits(self, step: SetTraits) -> None:
        have = self._have(step.uuid)
        wanted = frozenset(
            each
            for each in step.traits
            if PlacementName(NameKind.TRAIT, each) not in self._blocked
        )
        if wanted != have.traits:
            generation = self._tree.client.set_traits(
                step.uuid, have.generation, wanted, self._tree.deadline
            )
            self._keep(step.uuid, generation=generation, traits=wanted)

    def _set_inventories(self, step: SetInventories) -> None:
        have = self._have(step.uuid)
        wanted = {
            name: each
            for name, each in step.inventories.items()
            if PlacementName(NameKind.RESOURCE_CLASS, name) not in self._blocked
        }
        if wanted != have.inventories:
            generation = self._tree.client.set_inventories(
                step.uuid, have.generation, wanted, self._tree.deadline
            )
            self._keep(step.uuid, generation=generation, inventories=wanted)

    def _have(self, uuid: str) -> ProviderContents:
        return self._tree.contents.get(uuid, EMPTY)

    def _keep(self, uuid: str, **changes: Any) -> None:
        self._tree.contents[uuid] = dataclasses.replace(self._have(uuid), **changes)


def _is_stale(step: Step, status: int) -> bool:
    """Return whether the state has changed since the step was planned.

    A provider is gone, in use, or exists already; a name has been deleted.
    """
    if status == _BAD_REQUEST:
        return isinstance(step, SetTraits | SetInventories)
    return status in (_NOT_FOUND, _CONFLICT)
