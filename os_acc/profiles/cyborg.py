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


"""Device profiles asked of Cyborg's API, version 2.

``GET /v2/device_profiles``: https://docs.openstack.org/api-ref/accelerator/.
Nothing else is asked of Cyborg, and nothing is changed there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from os_acc import exception, hints
from os_acc.objects.profile import DeviceProfile
from os_acc.profiles import reading
from os_acc.profiles.options import CYBORG, CYBORG_DEFAULTS
from os_acc.profiles.source import Judged
from os_acc.rest import options

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter

    from os_acc.rest.retries import Retries

_DEFAULTS: Final = {**CYBORG_DEFAULTS, **options.PATIENCE}
_SPOKEN: Final = "version 2 is spoken, and there is no other"
_ABOUT: Final = "the device profiles"


class Cyborg:
    """A :class:`os_acc.profiles.source.Source` that is Cyborg.

    Threads may share one. keystoneauth1 is imported when it is first asked.

    :param conf: as it is when the first profile is asked for.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._made: tuple[Adapter, Retries] | None = None

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """See :meth:`os_acc.profiles.source.Source.profile`.

        :raises InvalidConfiguration: Cyborg does not let us in, or is not there.
        """
        for entry in self._listed(deadline):
            if name in (entry.get("name"), entry.get("uuid")):
                return reading.read(entry)
        raise exception.ProfileNotFound(
            f"Cyborg has no device profile {hints.shown(name)}",
            hint="'os-acc profile list' shows those that there are",
        )

    def judged(self, deadline: float) -> Iterator[tuple[str, Judged]]:
        """See :meth:`os_acc.profiles.source.Source.judged`.

        :raises InvalidConfiguration: Cyborg does not let us in, or is not there.
        """
        for entry in self._listed(deadline):
            try:
                yield "Cyborg", reading.read(entry)
            except exception.InvalidProfile as error:
                yield "Cyborg", error

    def _listed(self, deadline: float) -> list[Mapping[str, Any]]:
        # All of them, as Nova does: Cyborg's answer has no pages, and its
        # filter by name is younger than some of its releases.
        from os_acc.rest import failures, retries

        adapter, patience = self._link()
        answer = retries.ask(
            lambda: adapter.get("/v2/device_profiles").json(),
            patience,
            retries.Failures(_raised(), failures.is_connection, _translated),
            _ABOUT,
            deadline,
        )
        listed = answer.get("device_profiles") if isinstance(answer, Mapping) else None
        if not isinstance(listed, list):
            raise exception.InvalidConfiguration(
                "what answers has no list of device profiles",
                hint=f"see endpoint_override in [{CYBORG.name}]",
            )
        return [entry for entry in listed if isinstance(entry, Mapping)]

    def _link(self) -> tuple[Adapter, Retries]:
        from keystoneauth1 import adapter

        from os_acc.rest.access import access

        with self._lock:
            if self._made is None:
                found = access(
                    self._conf,
                    register,
                    CYBORG.name,
                    _SPOKEN,
                    exception.InvalidConfiguration,
                )
                where = found.where
                if override := where["endpoint_override"]:
                    # Every path that is asked for has the version in it.
                    where["endpoint_override"] = override.rstrip("/").removesuffix(
                        "/v2"
                    )
                self._made = (
                    adapter.Adapter(found.session, auth=found.auth, **where),
                    found.retries,
                )
            return self._made


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second time changes nothing."""
    options.register(conf, CYBORG, _DEFAULTS)


def list_opts() -> list[cfg.Opt]:
    """For oslo-config-generator."""
    return options.list_opts(_DEFAULTS)


def _raised() -> tuple[type[Exception], ...]:
    from keystoneauth1 import exceptions as ksa

    return (ksa.ClientException, OSError, ValueError)


def _translated(
    error: Exception, code: int | None, about: str, deadline: float
) -> exception.OsAccError:
    from os_acc.rest import failures

    told = f"{about}: {failures.told(error)}"
    if time.monotonic() >= deadline:
        return exception.ProfilesUnavailable(
            f"Cyborg did not answer in time for {told}",
            hint="raise the operation's own timeout if this is usual",
        )
    if failures.is_connection(error):
        return exception.ProfilesUnavailable(
            f"nobody answers for {told}", hint="see that Keystone and Cyborg run"
        )
    if code is not None and (code >= 500 or code in (408, 429)):
        return exception.ProfilesUnavailable(
            f"the service cannot answer for {told}", hint="its own log says more"
        )
    return exception.InvalidConfiguration(
        f"cannot ask for {told}",
        hint=failures.where_to_look(error, CYBORG.name)
        or f"see endpoint_override in [{CYBORG.name}]",
    )
