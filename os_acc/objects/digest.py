# SPDX-License-Identifier: Apache-2.0

"""Digests of images, which name the files in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Self

from os_acc import exception
from os_acc.objects.image import Image

#: Hexadecimal digits of each trusted algorithm. MD5 and SHA-1 are excluded:
#: collisions are feasible.
LENGTHS = {
    "blake2b": 128,
    "blake2s": 64,
    "sha256": 64,
    "sha384": 96,
    "sha512": 128,
    "sha3_256": 64,
    "sha3_384": 96,
    "sha3_512": 128,
}

_FILE_NAME = re.compile(r"([a-z0-9_]+)-([0-9a-f]+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Digest:
    """The expected hash of an image's data.

    :ivar algorithm: one of :data:`LENGTHS`, valid for :func:`hashlib.new`.
    :ivar value: hexadecimal, lower case.
    """

    algorithm: str
    value: str

    @classmethod
    def of(cls, image: Image) -> Self:
        """Return the digest of an image (Glance's ``os_hash_algo``, ``os_hash_value``).

        :raises ImageUnusable: it is missing, malformed or of an untrusted algorithm.
        """
        algorithm, value = image.hash_algo, image.hash_value
        if not algorithm or not value:
            raise exception.ImageUnusable(
                f"image {image} has no hash",
                hint="upload the image again: Glance then sets os_hash_algo and "
                "os_hash_value",
                reason=exception.ImageReason.INVALID,
            )
        if algorithm not in LENGTHS:
            raise exception.ImageUnusable(
                f"the hash of image {image} uses {exception.show(algorithm)}, "
                "which is not accepted",
                hint="set hashing_algorithm in Glance to one of "
                f"{', '.join(LENGTHS)}, and upload the image again",
                reason=exception.ImageReason.INVALID,
            )
        found = cls.of_file_name(f"{algorithm}-{value}")
        if found is None:
            raise exception.ImageUnusable(
                f"the hash of image {image}, {exception.show(value)}, does "
                f"not have the {LENGTHS[algorithm]} digits of {algorithm}",
                reason=exception.ImageReason.INVALID,
            )
        return found

    @classmethod
    def of_file_name(cls, name: str) -> Self | None:
        """Return the digest in a file's name; None if there is none."""
        found = _FILE_NAME.fullmatch(name)
        if found is None:
            return None
        algorithm, value = found.groups()
        if LENGTHS.get(algorithm) != len(value):
            return None
        return cls(algorithm, value)

    @property
    def file_name(self) -> str:
        """The name of the image's file in the cache."""
        return f"{self.algorithm}-{self.value}"

    def new(self) -> hashlib._Hash:
        """Return a new hash object of this algorithm."""
        return hashlib.new(self.algorithm)

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"
