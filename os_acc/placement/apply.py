# SPDX-License-Identifier: Apache-2.0

"""Application of a plan to Placement."""

from __future__ import annotations

from oslo_log import log

from os_acc import exception
from os_acc.objects.published import NO_NAMES, NameKind, PlacementName, PublishedNames
from os_acc.placement.api_model import EMPTY, Declined, ProviderContents, ServerFailed
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
from os_acc.placement.client import Client
from os_acc.placement.diff import ActualState, ChangePlan, DesiredState
from os_acc.placement.published import PublishedRecord

LOG = log.getLogger(__name__)

_BAD_REQUEST, _NOT_FOUND, _CONFLICT = 400, 404, 409


class ApplyResult:
    """The result of applying a plan.

    :ivar done: the steps that Placement carried out.
    :ivar refused: the steps that Placement rejected for good.
    :ivar again: the steps to plan anew from the current state.
    :ivar contents: the current contents of the changed providers.
    :ivar created: the names that exist now.
    :ivar gone: the names to remove from the record.
    :ivar in_use: the names that others use.
    """

    def __init__(
        self,
        client: Client,
        goal: DesiredState,
        tree: ActualState,
        ledger: PublishedRecord,
        deadline: float,
    ) -> None:
        self.done: list[Step] = []
        self.refused: list[RefusedChange] = []
        self.again: list[RefusedChange] = []
        self.contents: dict[str, ProviderContents] = {}
        self.created: set[PlacementName] = set()
        self.gone = NO_NAMES
        self.in_use: set[PlacementName] = set()
        self._client = client
        self._goal = goal
        self._tree = tree
        self._ledger = ledger
        self._deadline = deadline
        #: Providers (by UUID) and names whose further steps are skipped.
        self._blocked: set[str] = set()
        self._unusable: set[PlacementName] = set()

    def apply(self, plan: ChangePlan, skipped: frozenset[str]) -> None:
        """Carry out the steps; one that fails does not stop the others.

        :param skipped: the printed steps that were rejected before.
        :raises OsAccError: Placement does not answer, or denies access.
        """
        for step in plan.steps:
            if str(step) not in skipped and not self._is_blocked(step):
                self._try(step)

    def _try(self, step: Step) -> None:
        try:
            self._do(step)
        except Declined as error:
            if isinstance(step, DeleteName):
                self._keep_name(step.name, error)
            elif _is_stale(step, error.status):
                self._plan_again(step, error)
            else:
                self._refuse(step, error)
        except exception.ServiceRefused as error:
            if error.reason is not exception.RefusalReason.CONFLICT:
                raise
            self._plan_again(step, error)
        except ServerFailed as error:
            # The outcome is unknown; the database may have been busy.
            self._plan_again(step, error)
        else:
            self.done.append(step)

    def _is_blocked(self, step: Step) -> bool:
        match step:
            case Create() | Move():
                return bool(self._blocked & {step.uuid, step.parent})
            case SetTraits() | SetInventories() | Remove():
                return step.uuid in self._blocked
        return False

    def _do(self, step: Step) -> None:
        match step:
            case MakeName():
                self._make(step.name)
            case Create():
                generation = self._client.create(
                    step.uuid, step.name, step.parent, self._deadline
                )
                self.contents[step.uuid] = ProviderContents(generation, {}, frozenset())
            case Move():
                self._client.move(step.uuid, step.name, step.parent, self._deadline)
            case SetTraits():
                self._set_traits(step)
            case SetInventories():
                self._set_inventories(step)
            case Remove():
                self._client.delete(step.uuid, self._deadline)
                self.gone |= PublishedNames(
                    {step.uuid: self._goal.published_names.of(step.uuid)}
                )
            case DeleteName():
                self._client.delete_name(step.name, self._deadline)
                self.gone |= PublishedNames(created=frozenset({step.name}))

    def _make(self, name: PlacementName) -> None:
        created = PublishedNames(created=frozenset({name}))
        if self._client.make_name(name, self._deadline):
            # Recorded after the request: a name that another service creates is not
            # ours. Recorded at once: a crash in between would leave the name unowned.
            self._ledger.change_published_names(created)
        else:
            # Another service created it first.
            self.gone |= created
        self.created.add(name)

    def _set_traits(self, step: SetTraits) -> None:
        have = self._have(step.uuid)
        traits = step.traits - self._texts(NameKind.TRAIT)
        if traits == have.traits:
            return
        after = self._client.set_traits(
            step.uuid, have.generation, traits, self._deadline
        )
        self.contents[step.uuid] = ProviderContents(after, have.inventories, traits)
        self._end(step.uuid, NameKind.TRAIT, step.removed)

    def _set_inventories(self, step: SetInventories) -> None:
        have = self._have(step.uuid)
        unusable = self._texts(NameKind.RESOURCE_CLASS)
        inventories = {
            name: each
            for name, each in step.inventories.items()
            if name not in unusable
        }
        if inventories == have.inventories:
            return
        after = self._client.set_inventories(
            step.uuid, have.generation, inventories, self._deadline
        )
        self.contents[step.uuid] = ProviderContents(after, inventories, have.traits)
        self._end(step.uuid, NameKind.RESOURCE_CLASS, step.dropped)

    def _have(self, uuid: str) -> ProviderContents:
        return self.contents.get(uuid) or self._tree.contents.get(uuid, EMPTY)

    def _end(self, uuid: str, kind: NameKind, texts: frozenset[str]) -> None:
        names = frozenset(PlacementName(kind, each) for each in texts)
        self.gone |= PublishedNames({uuid: names & self._goal.published_names.of(uuid)})

    def _texts(self, kind: NameKind) -> set[str]:
        return {each.text for each in self._unusable if each.kind is kind}

    # -- failures --------------------------------------------------------------

    def _plan_again(self, step: Step, error: exception.OsAccError) -> None:
        LOG.debug("%s is planned again: %s", step, error)
        self.again.append(RefusedChange(str(step), error))
        self._block(step)

    def _refuse(self, step: Step, error: exception.OsAccError) -> None:
        self.refused.append(RefusedChange(str(step), error))
        self._block(step)

    def _block(self, step: Step) -> None:
        if isinstance(step, MakeName | DeleteName):
            self._unusable.add(step.name)
        else:
            self._blocked.add(step.uuid)

    def _keep_name(self, name: PlacementName, error: Declined) -> None:
        """Keep a name that is in use; forget one that does not exist any more."""
        if error.status == _NOT_FOUND:
            self.gone |= PublishedNames(created=frozenset({name}))
        else:
            LOG.debug("%s is not deleted: %s", name, error)
            self.in_use.add(name)


def _is_stale(step: Step, status: int) -> bool:
    """Return whether the state has changed since the step was planned.

    A provider is gone, in use, or exists already; a name has been deleted.
    """
    if status == _BAD_REQUEST:
        return isinstance(step, SetTraits | SetInventories)
    return status in (_NOT_FOUND, _CONFLICT)
