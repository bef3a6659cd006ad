# SPDX-License-Identifier: Apache-2.0

"""Errors for requests that Placement rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from os_acc import exception
from os_acc.placement.api_model import Declined
from os_acc.placement.options import GROUP
from os_acc.rest import responses

if TYPE_CHECKING:
    from requests import Response

_FORBIDDEN: Final = 403


def refused(answer: Response, about: str) -> exception.ServiceRefused:
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
            hint=f"give the user in [{GROUP.name}] the role service or admin",
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
