# SPDX-License-Identifier: Apache-2.0

"""One call of the helper for the devices of several leases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from os_acc import deadlines, privsep
from os_acc.privsep import binding, request

_SEVERAL: Final[Mapping[str, tuple[type[binding.GroupRequest], Callable[..., Any]]]] = {
    "take": (binding.TakeRequest, binding.take),
    "give_back": (binding.GiveBackRequest, binding.give_back),
}
_name = request.that(lambda name: type(name) is str and name in _SEVERAL)


@dataclasses.dataclass(frozen=True, slots=True)
class SeveralRequest(request.Request):
    """Calls of :func:`.binding.take` or :func:`.binding.give_back`, one for each lease.

    :ivar name: of the function.
    :ivar calls: the values of each call.
    """

    name: Annotated[str, _name]
    calls: Annotated[tuple[request.Values, ...], request.each(request.values)]

    def validate(self) -> None:
        """Check all calls before the first one runs."""
        kind, _ = _SEVERAL[self.name]
        request.require(bool(self.calls))
        for values in self.calls:
            try:
                kind.parse(values)
            except TypeError as error:
                raise request.Malformed from error


@request.entrypoint(privsep.base, SeveralRequest, for_each=True)
def several(call: SeveralRequest) -> tuple[binding.Answers, ...]:
    """Call an entry point for several leases at once, and return its answers."""
    _, function = _SEVERAL[call.name]
    return tuple(deadlines.side_by_side(call.calls, lambda values: function(*values)))
