# SPDX-License-Identifier: Apache-2.0

"""Verify the signature of an image by a signer that root trusts.

A signature covers the sealed memory that is programmed (:mod:`.images`), as
defined by Glance ("Image Signature Verification"). The caller passes Glance's four
properties; the certificates come from root's directory.

Only the context ``image`` preloads this module.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import time

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives.asymmetric import dsa, ed448, ed25519

from os_acc import exception
from os_acc.bitstreams import signature
from os_acc.privsep import privileged_conf
from os_acc.privsep.outcome import CallRefused, unfit

_PIECE = 2**20
# cryptography imports these lazily: too late in a confined helper.
_PRELOADED = (backend, dsa, ed448, ed25519)


def check(image: int, given: tuple[str, ...], directory: str, deadline: float) -> None:
    """Verify the signature of an image.

    :param image: file descriptor of its sealed memory.
    :param given: signature in base64, hash method, key type, and the id of the
        certificate, as in Glance's properties ``img_signature*``.
    :param directory: directory of the certificates that root trusts.
    :param deadline: on the clock of ``time.monotonic()``.
    :raises CallRefused: no trusted signer signed it. The step is ``signature``.
    """
    if not all(given):
        raise _unsigned("it is not signed")
    if (why := privileged_conf.not_roots_tree(directory)) is not None:
        raise _unsigned(why)
    digest_for = functools.partial(_digest, image, deadline)
    try:
        signature.check(given, directory, digest_for)
    except signature.SignatureUnusable as error:
        raise _unsigned(f"its signature {error}") from error
    except InvalidSignature as error:
        raise _unsigned("the signature is not that of the image") from error
    except exception.OsAccError as error:
        raise _unsigned(error.message) from error


def _digest(image: int, deadline: float, algorithm: str) -> bytes:
    found, offset = hashlib.new(algorithm), 0
    while piece := os.pread(image, _PIECE, offset):
        if time.monotonic() >= deadline:
            raise unfit(errno.ETIMEDOUT)
        found.update(piece)
        offset += len(piece)
    return found.digest()


def _unsigned(why: str) -> CallRefused:
    return unfit(errno.EKEYREJECTED, "signature", why)
