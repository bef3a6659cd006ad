# SPDX-License-Identifier: Apache-2.0

"""Sources of device profiles: YAML files of the host, and Cyborg.

A file::

    device_profiles:
    - name: fpga-dp1
      description: a region that the instance's bitstream is loaded into
      groups:
      - resources:CUSTOM_ACCELERATOR_FPGA: 1
        trait:CUSTOM_PROGRAMMABLE: required
        accel:bitstream_id: d5ca2f11-3108-4426-a11c-a959987565df

The format is that of Cyborg's API, so its responses can be used unchanged. JSON is
parsed as JSON: YAML reads a surrogate pair as two characters, and allows no tab as
indentation.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml
from oslo_config import cfg

from os_acc import deadlines, exception
from os_acc.objects.request_group import DeviceProfile
from os_acc.profiles import validation
from os_acc.profiles.options import CYBORG
from os_acc.rest import responses
from os_acc.rest.client import Service, ServiceClient
from os_acc.rest.responses import UnusableValue

if TYPE_CHECKING:
    from requests import Response

SERVICE: Final = Service(
    name="Cyborg",
    group=CYBORG,
    version="v2",
    spoken="version 2 is the only one",
    service_type=exception.ServiceType.ACCELERATOR,
)
_SUFFIX: Final = ".yaml"
#: Bytes: room for hundreds of profiles. PyYAML takes seconds for a megabyte.
_LARGEST: Final = 1 << 18
# Files in an error's message.
_SHOWN: Final = 8
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
# O_NONBLOCK: opening a FIFO must not block.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: A profile, or the error of one that cannot be used.
CheckedProfile: TypeAlias = DeviceProfile | exception.OsAccError


# -- files ------------------------------------------------------------------


class ProfileFiles:
    """Device profiles in files; an invalid one does not hide the others.

    :param path: a file, or a directory of files.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """Return the profile with this name or UUID.

        :param deadline: on the clock of :func:`time.monotonic`.
        :raises NotFound: no file has the profile.
        :raises InvalidProfile: the profile is invalid, or not unique.
        :raises ServiceUnavailable: a file cannot be read.
        """
        found, errors = [], []
        for where, entry in self._entries(deadline):
            if isinstance(entry, exception.OsAccError):
                errors.append(entry)
            elif validation.is_called(entry, name):
                found.append((where, entry))
        if len(found) > 1:
            files = dict.fromkeys(where for where, _entry in found)
            raise exception.InvalidProfile(
                f"there are {len(found)} device profiles {name}: in "
                + exception.some(files, _SHOWN)
            )
        if found:
            return validation.read(found[0][1])
        if errors:
            # The unreadable file may contain the profile.
            raise errors[0]
        raise exception.NotFound(
            f"there is no device profile {exception.show(name)} in {self._path}",
            hint="'os-acc profile list' lists the existing ones",
            kind=exception.ObjectKind.PROFILE,
        )

    def checked(self, deadline: float) -> Iterator[tuple[str, CheckedProfile]]:
        """Yield the profiles or their errors, each with its file, in no order.

        :raises ServiceUnavailable: the directory cannot be read.
        """
        entries = list(self._entries(deadline))
        called = Counter(
            each
            for _where, entry in entries
            if isinstance(entry, Mapping)
            for each in validation.called(entry)
        )
        for where, entry in entries:
            deadlines.left(deadline)
            yield where, _checked(entry, called)

    def _entries(
        self, deadline: float
    ) -> Iterator[tuple[str, Mapping[str, Any] | exception.OsAccError]]:
        """Yield the entries of all files, not parsed yet."""
        for path in self._files():
            deadlines.left(deadline)
            try:
                listed = _listed(path, deadline)
            except exception.OsAccError as error:
                yield path, error
                continue
            for entry in listed:
                deadlines.left(deadline)
                if isinstance(entry, Mapping):
                    yield path, entry
                    continue
                why = f"{exception.show(entry)} is not a device profile"
                if isinstance(entry, UnusableValue):
                    why = entry.why
                yield path, exception.InvalidProfile(f"{path}: {why}")

    def _files(self) -> list[str]:
        if not os.path.isdir(self._path):
            return [self._path]
        try:
            names = sorted(os.listdir(self._path))
        except OSError as error:
            raise _unreadable(self._path, error.strerror) from error
        return [
            os.path.join(self._path, name) for name in names if name.endswith(_SUFFIX)
        ]


def _checked(entry: object, called: Counter[str]) -> CheckedProfile:
    """Return the profile of an entry, or its error.

    :param called: the numbers of entries by their name and UUID.
    """
    if isinstance(entry, exception.OsAccError):
        return entry
    try:
        profile = validation.read(entry)
    except exception.OsAccError as error:
        return error
    for each in (profile.name, profile.uuid):
        if called[each] > 1:
            return exception.InvalidProfile(
                f"there are {called[each]} device profiles {each}"
            )
    return profile


class _Loader(yaml.BaseLoader):  # type: ignore[misc]
    """A YAML loader of lists, mappings and text: no other value is constructed.

    :class:`.UnusableValue` replaces a mapping with a duplicate key: YAML would
    silently use the last value.
    """

    def __init__(self, text: bytes, deadline: float) -> None:
        super().__init__(text)
        self._deadline = deadline
        self._nodes = 0
        #: The number of nodes in each complete node, by its id().
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        """See PyYAML; an alias counts as the nodes that it refers to.

        :raises yaml.YAMLError: there are more nodes than a file without aliases can
            have, or an alias is inside the node that it refers to.
        :raises DeviceStuck: the deadline has passed.
        """
        deadlines.left(self._deadline)
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark
        before = self._nodes
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._weights:
            raise yaml.composer.ComposerError(
                None, None, "found an alias inside of its own anchor", mark
            )
        self._nodes += self._weights[id(node)] if is_alias else 1
        if self._nodes > _LARGEST:
            raise yaml.composer.ComposerError(
                None, None, f"its aliases expand to more than {_LARGEST} nodes", mark
            )
        self._weights.setdefault(id(node), self._nodes - before)
        return node

    def construct_scalar(self, node: yaml.ScalarNode) -> str | None:
        """Return the text of a value; None for a plain null."""
        text: str = super().construct_scalar(node)
        return None if node.style is None and text in _NULLS else text

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[str, Any] | UnusableValue:
        """See PyYAML."""
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            key = self.construct_object(key_node)
            line = f"line {key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                return UnusableValue(f"{line}: found a key that is no text")
            if key in found:
                return UnusableValue(f"{line}: {_twice(key)}")
            found[key] = self.construct_object(value)
        return found


def _twice(key: str) -> str:
    return f"found the key {exception.show(key)} a second time"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any] | UnusableValue:
    """Return a JSON object, or :class:`.UnusableValue` if it has a duplicate key."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            return UnusableValue(_twice(key))
        found[key] = value
    return found


def _parsed(path: str, text: bytes, deadline: float) -> object:
    """Parse a file as JSON, else as YAML.

    :class:`.UnusableValue` replaces each invalid value.

    :raises InvalidProfile: the file is neither.
    :raises DeviceStuck: the deadline has passed.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=responses.integer)
    except (ValueError, RecursionError):
        pass
    try:
        return _Loader(text, deadline).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise exception.InvalidProfile(
            f"cannot parse {path} as YAML: {error}"
        ) from error


def _listed(path: str, deadline: float) -> list[Any]:
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unreadable(path, "it is not a regular file")
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    if len(text) > _LARGEST:
        raise exception.InvalidProfile(
            f"{path} has more than {_LARGEST} bytes", hint="split it into several files"
        )
    found = _parsed(path, text, deadline)
    if isinstance(found, UnusableValue):
        raise exception.InvalidProfile(f"{path}: {found.why}")
    listed = found.get("device_profiles") if isinstance(found, Mapping) else found
    if not isinstance(listed, list):
        raise exception.InvalidProfile(
            f"{path} has no list of device profiles",
            hint="start the list with 'device_profiles:'",
        )
    return listed


def _unreadable(path: str, why: str | None) -> exception.ServiceUnavailable:
    return exception.ServiceUnavailable(
        f"cannot read the device profiles in {path}: {why}",
        hint="check [os_acc_profiles] in the configuration",
        service=exception.ServiceType.ACCELERATOR,
        reason=exception.OutageReason.LOCAL_SOURCE,
    )


# -- Cyborg -----------------------------------------------------------------


class Cyborg:
    """The device profiles of Cyborg's API, version 2; thread-safe.

    ``GET /v2/device_profiles`` is the only request to Cyborg, and changes nothing:
    https://docs.openstack.org/api-ref/accelerator/. Each method raises
    :class:`.ServiceUnavailable` if Cyborg does not answer, and
    :class:`.InvalidConfiguration` if it denies access or the endpoint is wrong.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._link = ServiceClient(conf, SERVICE)

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """See :meth:`ProfileFiles.profile`."""
        for entry in self._listed(deadline):
            if isinstance(entry, Mapping) and validation.is_called(entry, name):
                return validation.read(entry)
        raise exception.NotFound(
            f"Cyborg has no device profile {exception.show(name)}",
            hint="'os-acc profile list' lists the existing ones",
            kind=exception.ObjectKind.PROFILE,
        )

    def checked(self, deadline: float) -> Iterator[tuple[str, CheckedProfile]]:
        """See :meth:`ProfileFiles.checked`."""
        for entry in self._listed(deadline):
            yield SERVICE.name, _checked(entry, Counter())

    def _listed(self, deadline: float) -> list[object]:
        # The whole list, as Nova reads it: Cyborg has no pages, and some releases
        # cannot filter by name.
        path, about = "/v2/device_profiles", "list the device profiles"
        return self._link.ask("GET", path, _profiles, about, deadline)


def _profiles(answer: Response) -> list[object]:
    # Not parsed yet: an invalid profile must not hide the others.
    return [each.found for each in responses.document(answer)["device_profiles"]]


ProfileSource: TypeAlias = ProfileFiles | Cyborg
