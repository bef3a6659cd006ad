# SPDX-License-Identifier: Apache-2.0

"""Images in a directory of the host.

Each image is a file with its fields and properties beside it in ``<file>.json``, an
object with Glance's names. ``id`` is required; without ``os_hash_algo`` and
``os_hash_value``, the image is never programmed. Other fields default to those of an
image that an administrator has published.

An unusable file does not affect other images. A file that is not regular (a link, a
pipe), that is world-writable, or whose properties are not (yet) JSON is skipped, and
the reason is logged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping

from oslo_log import log

from os_acc import exception
from os_acc.bitstreams.source import FIELDS, ImageStream, has, parsed
from os_acc.objects.bitstream import Image
from os_acc.objects.instance import canonical_uuid
from os_acc.rest.responses import JsonValue, ResponseMalformed

LOG = log.getLogger(__name__)

_SUFFIX = ".json"
#: Bytes of properties: Glance allows 128 properties of 255 characters.
_MOST_PROPERTIES = 1 << 18
_PIECE = 1 << 20

# The fields of an image that an administrator has published.
_DEFAULTS = {
    "status": "active",
    "visibility": "public",
    "disk_format": "raw",
    "container_format": "bare",
}


class _Unusable(Exception):
    """A file in the directory is skipped; the message is the reason."""


class Directory:
    """A directory as a :class:`os_acc.bitstreams.source.ImageSource`.

    :param path: absolute path; only users who may decide what is programmed may
        have write access.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._logged: set[tuple[str, str]] = set()

    def image(self, image_id: str, deadline: float) -> Image:
        """See :meth:`os_acc.bitstreams.source.ImageSource.image`.

        :raises ImageUnusable: several files have this ID.
        """
        return self._found(image_id, deadline)[1]

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.images`."""
        for _, image in self._entries(deadline):
            if has(image, filters):
                yield image

    @contextlib.contextmanager
    def data(self, image: Image, offset: int, deadline: float) -> Iterator[ImageStream]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.data`."""
        name, _ = self._found(image.id, deadline)
        with self._opened() as directory:
            try:
                fd = _open(directory, name)
            except (OSError, _Unusable) as error:
                raise exception.ImageNotFound(
                    f"cannot open the file of image {image} in {self._path}: {error}"
                ) from error
        with open(fd, "rb", buffering=0) as file:
            file.seek(offset)
            yield ImageStream(offset, _pieces(file, deadline, f"{self._path}/{name}"))

    def _found(self, image_id: str, deadline: float) -> tuple[str, Image]:
        """Return the name of an image's file, and the image."""
        wanted = canonical_uuid(image_id)
        found = [each for each in self._entries(deadline) if each[1].id == wanted]
        if not found:
            raise exception.ImageNotFound(
                f"no image in {self._path} has the id {exception.show(image_id)}",
                hint="put a .json file with the image's id beside each file",
            )
        if len(found) > 1:
            files = ", ".join(file for file, _ in found)
            raise exception.ImageUnusable(
                f"several files in {self._path} have the id {wanted}: {files}",
                hint="give each file a different id",
                reason=exception.ImageReason.AMBIGUOUS,
            )
        return found[0]

    def _entries(self, deadline: float) -> Iterator[tuple[str, Image]]:
        with self._opened() as directory:
            for name in sorted(os.listdir(directory)):
                if name.startswith(".") or not name.endswith(_SUFFIX):
                    continue
                _check_time(deadline, self._path)
                file = name.removesuffix(_SUFFIX)
                try:
                    yield file, _read_image(directory, file)
                except (OSError, _Unusable) as error:
                    self._log_skipped(file, str(error))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _unavailable(
                f"cannot read the images in {self._path}: {error.strerror}",
                "check [os_acc_bitstreams] directory",
            ) from error
        try:
            if os.fstat(directory).st_mode & stat.S_IWOTH:
                raise exception.InvalidConfiguration(
                    f"{self._path} is world-writable: any user could add a bitstream",
                    hint=f"run 'chmod o-w {self._path}'",
                )
            yield directory
        finally:
            os.close(directory)

    def _log_skipped(self, name: str, why: str) -> None:
        if (name, why) not in self._logged:
            self._logged.add((name, why))
            shown = exception.show(name)
            LOG.warning("skipping image %s in %s: %s", shown, self._path, why)


def _pieces(file: io.FileIO, deadline: float, path: str) -> Iterator[bytes]:
    while True:
        _check_time(deadline, path)
        try:
            piece = file.read(_PIECE)
        except OSError as error:
            raise _unavailable(f"cannot read {path}: {error.strerror}") from error
        if not piece:
            return
        yield piece


def _check_time(deadline: float, path: str) -> None:
    if time.monotonic() >= deadline:
        raise _unavailable(f"{path} was not read in time")


def _unavailable(message: str, hint: str = "") -> exception.ServiceUnavailable:
    service, reason = exception.ServiceType.IMAGE, exception.OutageReason.LOCAL_SOURCE
    return exception.ServiceUnavailable(
        message, hint=hint, service=service, reason=reason
    )


def _open(directory: int, name: str) -> int:
    # Do not block on a pipe, and do not follow a link.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) and not mode & stat.S_IWOTH:
        return fd
    os.close(fd)
    what = "it is world-writable" if stat.S_ISREG(mode) else "it is not a regular file"
    raise _Unusable(what)


def _read_image(directory: int, file: str) -> Image:
    with open(_open(directory, file + _SUFFIX), "rb") as properties:
        text = properties.read(_MOST_PROPERTIES + 1)
    if len(text) > _MOST_PROPERTIES:
        raise _Unusable(f"its properties have more than {_MOST_PROPERTIES} bytes")
    with open(_open(directory, file), "rb") as data:
        size = os.fstat(data.fileno()).st_size
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"its properties are not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _Unusable("its properties are not a JSON object")
    # Glance uses null for absent fields.
    stated = {name: value for name, value in fields.items() if value is not None}
    for name, value in stated.items():
        if name not in FIELDS and not isinstance(value, str):
            raise _Unusable(
                f"its {exception.show(name)} is {exception.show(value)}, not text"
            )
    try:
        image = parsed(
            JsonValue({"name": file, **_DEFAULTS, **stated, "size": size}, "properties")
        )
    except ResponseMalformed as error:
        raise _Unusable(str(error)) from error
    return dataclasses.replace(image, id=canonical_uuid(image.id) or image.id)
