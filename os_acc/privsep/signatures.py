# SPDX-License-Identifier: Apache-2.0

"""Verify the signature of an image by a signer that root trusts.

A signature covers the sealed memory that is programmed (:mod:`.images`), as
defined by Glance ("Image Signature Verification"). The caller passes Glance's four
properties; the certificates come from root's directory.

Only the context ``image`` preloads this module.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import time
from typing import Any

from cryptography import exceptions
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import (
    dsa,
    ec,
    ed448,
    ed25519,
    padding,
    rsa,
    utils,
)

from os_acc import exception
from os_acc.bitstreams import signature
from os_acc.objects.instance import canonical_uuid
from os_acc.privsep import permissions
from os_acc.privsep.outcome import CallRefused, unfit

_HASHES: dict[str, tuple[str, hashes.HashAlgorithm]] = {
    "SHA-224": ("sha224", hashes.SHA224()),
    "SHA-256": ("sha256", hashes.SHA256()),
    "SHA-384": ("sha384", hashes.SHA384()),
    "SHA-512": ("sha512", hashes.SHA512()),
}
# The curves of Glance's documentation.
_CURVES = ("SECT409K1", "SECT409R1", "SECT571K1", "SECT571R1", "SECP384R1", "SECP521R1")
_KINDS = frozenset({"RSA-PSS", "DSA", *(f"ECC_{curve}" for curve in _CURVES)})
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
    text, method, kind, certificate_id = given
    if not all(given):
        raise _unsigned("it is not signed")
    if method not in _HASHES:
        raise _unsigned("its hash method is unknown")
    name, algorithm = _HASHES[method]
    key = _key(directory, certificate_id, kind)
    try:
        signature = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _unsigned("its signature is not base64") from error
    digest = _digest(image, name, deadline)
    try:
        _verify(key, signature, digest, algorithm)
    except exceptions.InvalidSignature as error:
        raise _unsigned("the signature is not that of the image") from error
    except (ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise _unsigned(f"the signature cannot be verified: {error}") from error


def _key(directory: str, certificate_id: str, kind: str) -> Any:
    if (why := permissions.not_roots_tree(directory)) is not None:
        raise _unsigned(why)
    if canonical_uuid(certificate_id) is None:
        raise _unsigned("its certificate has no UUID")
    try:
        certificate = signature.trusted(directory, certificate_id)
        key = certificate.public_key()
    except exception.OsAccError as error:
        raise _unsigned(error.message) from error
    except exceptions.UnsupportedAlgorithm as error:
        raise _unsigned("its certificate has an unknown key") from error
    if kind not in _KINDS:
        raise _unsigned("its key type is unknown")
    if (why := signature.unfit_key(key, kind)) is not None:
        raise _unsigned(why)
    return key


def _digest(image: int, algorithm: str, deadline: float) -> bytes:
    found, offset = hashlib.new(algorithm), 0
    while piece := os.pread(image, _PIECE, offset):
        if time.monotonic() >= deadline:
            raise unfit(errno.ETIMEDOUT)
        found.update(piece)
        offset += len(piece)
    return found.digest()


def _verify(
    key: Any, signature: bytes, digest: bytes, algorithm: hashes.HashAlgorithm
) -> None:
    hashed = utils.Prehashed(algorithm)
    if isinstance(key, rsa.RSAPublicKey):
        pss = padding.PSS(padding.MGF1(algorithm), padding.PSS.MAX_LENGTH)
        key.verify(signature, digest, pss, hashed)
    elif isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, digest, ec.ECDSA(hashed))
    else:
        key.verify(signature, digest, hashed)


def _unsigned(why: str) -> CallRefused:
    return unfit(errno.EKEYREJECTED, "signature", why)
