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


"""Device profiles in YAML files of this host.

::

    device_profiles:
    - name: fpga-dp1
      description: a region that the instance's bitstream is loaded into
      groups:
      - resources:CUSTOM_ACCELERATOR_FPGA: 1
        trait:CUSTOM_PROGRAMMABLE: required
        accel:bitstream_id: d5ca2f11-3108-4426-a11c-a959987565df

That is what Cyborg's API answers, so what it has answered can be used as it
is. JSON is read as JSON: to YAML, a pair of surrogates is two characters, and
a tab no indentation.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from os_acc import deadlines, exception, hints
from os_acc.objects.profile import DeviceProfile
from os_acc.profiles import reading
from os_acc.profiles.source import Judged

_SUFFIX: Final = ".yaml"
#: Bytes: hundreds of profiles. PyYAML takes some seconds for a megabyte.
_LARGEST: Final = 1 << 18
# Files in an error's message.
_SHOWN: Final = 8
#: Nodes of a YAML file, each alias and each merge (``<<``) counted as all that it
#: stands for. A file without aliases has fewer nodes than bytes.
_MOST_NODES: Final = _LARGEST
# O_NONBLOCK: what is no file must not make anybody wait.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Catalogue:
    """A :class:`os_acc.profiles.source.Source` that is files.

    One that is wrong hides none of the others.

    :param path: of the file, or of a directory with files.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """See :meth:`os_acc.profiles.source.Source.profile`.

        :raises InvalidProfile: it is wrong, or there are two.
        """
        found, errors = [], []
        for where, entry in self._entries(deadline):
            deadlines.left(deadline)
            if isinstance(entry, exception.OsAccError):
                errors.append(entry)
            elif reading.is_called(entry, name):
                found.append((where, reading.read(entry)))
        if len(found) > 1:
            raise exception.InvalidProfile(
                f"there are {len(found)} device profiles {name}: in "
                + hints.some(dict.fromkeys(where for where, _profile in found), _SHOWN)
            )
        for _where, profile in found:
            return profile
        for error in errors:
            # It may be in there.
            raise error
        raise exception.ProfileNotFound(
            f"there is no device profile {hints.shown(name)} in {self._path}",
            hint="'os-acc profile list' shows those that there are",
        )

    def judged(self, deadline: float) -> Iterator[tuple[str, Judged]]:
        """See :meth:`os_acc.profiles.source.Source.judged`; the place is a file."""
        entries = list(self._entries(deadline))
        called = Counter(
            each
            for _where, entry in entries
            if isinstance(entry, Mapping)
            for each in reading.called(entry)
        )
        for where, entry in entries:
            deadlines.left(deadline)
            if isinstance(entry, exception.OsAccError):
                yield where, entry
                continue
            try:
                profile = reading.read(entry)
            except exception.InvalidProfile as error:
                yield where, error
                continue
            twice = [each for each in (profile.name, profile.uuid) if called[each] > 1]
            if twice:
                yield (
                    where,
                    exception.InvalidProfile(
                        f"there are {called[twice[0]]} device profiles {twice[0]}"
                    ),
                )
            else:
                yield where, profile

    def _entries(
        self, deadline: float
    ) -> Iterator[tuple[str, Mapping[str, Any] | exception.OsAccError]]:
        """What stands in each place of each file, unread."""
        for path in self._files():
            deadlines.left(deadline)
            try:
                listed = _listed(path, deadline)
            except exception.OsAccError as error:
                yield path, error
                continue
            for entry in listed:
                if isinstance(entry, Mapping):
                    yield path, entry
                else:
                    yield (
                        path,
                        exception.InvalidProfile(
                            f"{path}: {hints.shown(entry)} is no device profile"
                        ),
                    )

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


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which no mapping has a key twice: the last would win, unseen."""

    def __init__(self, text: bytes, deadline: float) -> None:
        super().__init__(text)
        self._deadline = deadline
        self._nodes = 0
        #: By the id of each node that is complete: as many nodes as it contains.
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        """See PyYAML; an alias counts as all that it stands for.

        :raises yaml.YAMLError: more nodes than a file has without aliases; an alias
            inside of what it stands for.
        :raises DeviceStuck: the deadline has passed.
        """
        deadlines.left(self._deadline)
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark
        before = self._nodes
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._weights:
            raise yaml.composer.ComposerError(
                None, None, "found an alias inside of what it stands for", mark
            )
        self._nodes += self._weights[id(node)] if is_alias else 1
        if self._nodes > _MOST_NODES:
            raise yaml.composer.ComposerError(
                None, None, f"its aliases stand for more than {_MOST_NODES} nodes", mark
            )
        self._weights.setdefault(id(node), self._nodes - before)
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """See PyYAML; what is merged (``<<``) may be overridden.

        :raises yaml.YAMLError: a key is there twice.
        """
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    "while a mapping was read",
                    node.start_mark,
                    f"found the key {hints.shown(key.value)} a second time",
                    key.start_mark,
                )
            seen.add(key.value)
        return node


class _Twice(Exception):
    """A key is in a mapping a second time."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON.

    :raises _Twice: a key is there twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(f"found the key {hints.shown(key)} a second time")
        found[key] = value
    return found


def _parsed(path: str, text: bytes, deadline: float) -> object:
    """Return the contents of a file in JSON, or else in YAML.

    :raises InvalidProfile: it is neither.
    :raises DeviceStuck: the deadline has passed.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except _Twice as error:
        raise exception.InvalidProfile(f"{path}: {error}") from error
    except (ValueError, RecursionError):
        # It is no JSON.
        pass
    try:
        # It is a safe loader.
        return _Loader(text, deadline).get_single_data()
    except (
        yaml.YAMLError,
        # A value that is not what its tag says, or more than there can be.
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise exception.InvalidProfile(f"{path} is not YAML: {error}") from error


def _text(path: str) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unreadable(path, "it is no file")
            return file.read(_LARGEST + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror) from error


def _listed(path: str, deadline: float) -> list[Any]:
    text = _text(path)
    if len(text) > _LARGEST:
        raise exception.InvalidProfile(
            f"{path} has more than {_LARGEST} bytes", hint="use several files"
        )
    found = _parsed(path, text, deadline)
    listed = found.get("device_profiles") if isinstance(found, Mapping) else found
    if not isinstance(listed, list):
        raise exception.InvalidProfile(
            f"{path} has no list of device profiles",
            hint="it begins with 'device_profiles:'",
        )
    return listed


def _unreadable(path: str, why: str | None) -> exception.ProfilesUnavailable:
    return exception.ProfilesUnavailable(
        f"the device profiles in {path} cannot be read: {why}",
        hint="see [os_acc_profiles] in the configuration",
    )
