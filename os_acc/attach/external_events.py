# SPDX-License-Identifier: Apache-2.0

"""Nova's external events for accelerator requests.

``POST /os-server-external-events`` of https://docs.openstack.org/api-ref/compute/, with
microversion 2.82, the first one with ``accelerator-request-bound``. Nova waits for
these events before it starts the guest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from os_acc import exception
from os_acc.attach import serialize
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.api import ExternalEvent, NotifyReport
from os_acc.profiles import flavors
from os_acc.profiles.options import NOVA
from os_acc.rest import responses
from os_acc.rest.client import ServiceClient

if TYPE_CHECKING:
    from requests import Response

MICROVERSION: Final = "2.82"
SERVICE: Final = dataclasses.replace(flavors.SERVICE, patience="[os_acc] plug_timeout")
_PATH: Final = "/os-server-external-events"
_ABOUT: Final = "send the events of accelerator requests"
#: Nova's code of an event that it passes to the host of the server.
_ACCEPTED: Final = 200
#: The meaning of the other codes (``server_external_events.py`` of Nova 34).
_REASONS: Final[Mapping[int, str]] = {
    404: "Nova has no server {}, or the user in [os_acc_nova] is no administrator",
    422: "server {} is on no host: repeat this once Nova has scheduled it",
}


class NovaEvents:
    """Send events to Nova.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._link = ServiceClient(conf, SERVICE)

    def notify(
        self, requests: Collection[AcceleratorRequest], deadline: float
    ) -> NotifyReport:
        """Send one event for each resolved request.

        A repeated call sends the events again, which Nova ignores if it no longer
        waits for them.

        :raises ServiceRefused: Nova denies access, or is too old.
        :raises ServiceUnavailable: Nova does not answer.
        :raises InvalidConfiguration: credentials are missing or rejected, or the
            endpoint is wrong.
        """
        events = serialize.events(requests)["events"]
        # Nova rejects a body without events.
        codes = {}
        if events:
            codes = self._link.ask(
                "POST",
                _PATH,
                lambda answer: _codes(answer, events),
                _ABOUT,
                deadline,
                _refused,
                microversion=MICROVERSION,
                json={"events": events},
            )
        return {
            "sent": [tag for tag, code in codes.items() if code == _ACCEPTED],
            "refused": [
                {"uuid": each["tag"], "code": code, "error": _reason(each, code)}
                for each in events
                if (code := codes[each["tag"]]) != _ACCEPTED
            ],
            "unresolved": sorted(
                {each.uuid for each in requests} - {each["tag"] for each in events}
            ),
        }


def _codes(answer: Response, events: Collection[ExternalEvent]) -> dict[str, int]:
    answered = {
        each["tag"].text(): each["code"].integer()
        for each in responses.document(answer)["events"]
    }
    sent = [each["tag"] for each in events]
    if missing := [tag for tag in sent if tag not in answered]:
        raise responses.ResponseMalformed(
            f"the answer has no event with the tag {missing[0]}"
        )
    return {tag: answered[tag] for tag in sent}


def _reason(event: ExternalEvent, code: int) -> str:
    reason = _REASONS.get(code, "Nova refuses the event of server {}")
    return f"{reason.format(event['server_uuid'])} (code {code})"


def _refused(answer: Response) -> exception.OsAccError | None:
    code, detail = answer.status_code, responses.refusal(answer)
    if code == 406:
        message = f"Nova does not support microversion {MICROVERSION}: {detail}"
        hint = "upgrade Nova to 21.0.0 (Ussuri) or later"
    elif code == 403:
        message = f"Nova denies external events: {detail}"
        hint = f"give the user in [{NOVA.name}] the role admin"
    elif code == 400:
        message = f"Nova rejects the events of accelerator requests: {detail}"
        hint = "see the log of Nova's API"
    else:
        return None
    return exception.ServiceRefused(
        message, hint=hint, service=exception.ServiceType.COMPUTE
    )
