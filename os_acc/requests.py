# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests: created from a device profile, bound, unbound, deleted.

A request is one accelerator of one group of a device profile. Its keys and states
are those of Cyborg's API, version 2, so that Nova's code for accelerator requests
can use either. :func:`os_acc.initialize` must have succeeded.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from os_acc.attach.requests import Requests
    from os_acc.objects.api import ExternalEvents, NotifyReport, RequestEntry

__all__ = ["bind", "create", "delete", "events", "find", "notify", "unbind"]


def create(device_profile: str) -> list[RequestEntry]:
    """Create the accelerator requests of a device profile.

    N groups of M accelerators yield N*M requests, in the order of the groups, in
    the state ``Initial``.

    :param device_profile: the name or the UUID; see ``[os_acc_profiles]``.
    :raises InvalidInput: it is not text.
    :raises NotFound: the profile does not exist.
    :raises InvalidProfile: the profile cannot be served by any host.
    :raises ServiceUnavailable: the source of device profiles does not respond.
    """
    from os_acc.attach import serialize

    return [serialize.request(each) for each in _requests().create(device_profile)]


def bind(bindings: Mapping[str, Mapping[str, str]]) -> list[RequestEntry]:
    """Bind accelerator requests: plug their accelerators.

    The requests of one :func:`create` are bound to one instance together: all, or
    none. All bindings are checked before the first one is made: if a provider is not
    of this host, or an instance holds other accelerators, the requests of this
    instance fail, and no other one changes. Binding bound requests again confirms
    them. A request that failed (``BindFailed``, with a ``reason``) has to be unbound
    before it is bound again.

    :param bindings: by the UUID of each request: ``hostname``, ``device_rp_uuid``
        and ``instance_uuid``; optionally ``image_id``, the image that the instance
        boots, which may request a bitstream.
    :raises InvalidInput: a binding is malformed, or the requests of an instance are
        not those of one :func:`create`, only a part of them, or have several images.
    :raises NotFound: a request does not exist.
    :raises Conflict: a request cannot be bound in its state.
    :raises OsAccError: as :func:`os_acc.plug` raises it.
    """
    from os_acc.attach import serialize

    return [serialize.request(each) for each in _requests().bind(bindings)]


def find(
    instance: str | None = None, bind_state: str | None = None
) -> list[RequestEntry]:
    """Return accelerator requests, also those that a plug has created.

    :param instance: only requests that are, or last were, bound to this instance.
    :param bind_state: ``resolved``: only requests that are ``Bound``,
        ``BindFailed`` or ``Deleting``.
    :raises InvalidInput: an argument is invalid.
    """
    from os_acc.attach import serialize

    return [serialize.request(each) for each in _requests().find(instance, bind_state)]


def unbind(uuids: Sequence[str]) -> int:
    """Release the accelerators of requests; they may be bound again.

    :returns: the number of requests that were bound.
    :raises InvalidInput: the argument is empty, or not a list of UUIDs.
    :raises NotFound: a request does not exist.
    :raises DevicesUnreleased: some accelerators could not be released.
    """
    return _requests().unbind(uuids)


def delete(uuids: Sequence[str] | None = None, *, instance: str | None = None) -> int:
    """Delete accelerator requests.

    :param uuids: requests that are not bound.
    :param instance: instead: delete all requests of this instance, and unbind them
        first. Accelerators that a plug gave to the instance are released, too, and
        counted.
    :returns: the number of deleted requests.
    :raises InvalidInput: neither or both arguments are given, or they are no UUIDs.
    :raises NotFound: a request does not exist.
    :raises Conflict: a request is bound.
    :raises DevicesUnreleased: some accelerators could not be released.
    """
    return _requests().delete(uuids, instance)


def events(uuids: Sequence[str]) -> ExternalEvents:
    """Return the body of Nova's ``POST /os-server-external-events``.

    It has one ``accelerator-request-bound`` event for each resolved request, with
    the status ``completed`` or ``failed``. :func:`notify` sends it.

    :raises InvalidInput: the argument is empty, or not a list of UUIDs.
    :raises NotFound: a request does not exist.
    """
    return _requests().events(uuids)


def notify(uuids: Sequence[str]) -> NotifyReport:
    """Send the events of accelerator requests to Nova, which waits for them.

    The credentials are in ``[os_acc_nova]``. The call may be repeated. It changes no
    request, and sends nothing if no request is resolved.

    :returns: the requests whose events Nova has passed on, those whose event it
        refused, and those without an event.
    :raises InvalidInput: the argument is empty, or not a list of UUIDs.
    :raises NotFound: a request does not exist.
    :raises InvalidConfiguration: the credentials are missing or rejected, or the
        endpoint is wrong.
    :raises ServiceRefused: Nova denies access, or does not support the events.
    :raises ServiceUnavailable: Nova does not answer within ``plug_timeout``.
    """
    return _requests().notify(uuids)


def _requests() -> Requests:
    from os_acc.attach.requests import Requests
    from os_acc.service import get

    manager = get()
    return Requests(manager, manager.profiles.source)
