# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What it means that Placement does not do what it is asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from os_acc import exception
from os_acc.placement.known import Answered
from os_acc.placement.options import GROUP

if TYPE_CHECKING:
    from requests import Response

_FORBIDDEN: Final = 403


def refused(answer: Response, about: str) -> exception.PlacementRefused:
    """The error to raise.

    :param about: what it was asked to do: "make x".
    """
    code, detail = _told(answer)
    if code == "placement.concurrent_update":
        return exception.PlacementConflict(f"cannot {about}: {detail}")
    if answer.status_code == _FORBIDDEN:
        return Answered(
            f"Placement does not let us {about}: {detail}",
            status=_FORBIDDEN,
            hint=f"give the user in [{GROUP.name}] the role service or admin",
        )
    return Answered(f"Placement does not {about}: {detail}", status=answer.status_code)


def _told(answer: Response) -> tuple[str, str]:
    """(code, detail) of a refusal; HTTP's own where it is not Placement's."""
    from os_acc.rest import answers
    from os_acc.rest.failures import NOT_THEIRS

    try:
        error = next(iter(answers.document(answer)["errors"]))
        code = error["code"].text() if "code" in error else ""
    except (*NOT_THEIRS, StopIteration):
        code = ""
    return code, answers.refusal(answer)
