# SPDX-License-Identifier: Apache-2.0

"""Verification of image signatures, as in Glance and Nova.

The four properties ``img_signature*`` (Glance: "Image Signature Verification") are
checked with the verifiers of ``cursive``, as in those services. Only the certificate
comes from elsewhere: cursive reads it from a key manager.
"""

from __future__ import annotations

from typing import BinaryIO, Final, Protocol

from os_acc import deadlines, exception
from os_acc.bitstreams import policy, properties
from os_acc.objects.bitstream import Digest, Image
from os_acc.objects.instance import canonical_uuid

_PIECE: Final = 2**20


class _Verifier(Protocol):
    def update(self, data: bytes) -> None: ...

    def verify(self) -> None: ...


def verify(image: Image, file: BinaryIO, certificates: str, deadline: float) -> None:
    """Verify that a trusted certificate signed a file.

    The file is read once, in pieces, and hashed for the signature and for the
    image's own hash: later steps identify the verified bytes by that hash.

    :param file: opened for reading; it is read from its start.
    :param certificates: the directory of trusted certificates.
    :param deadline: on the clock of :func:`time.monotonic`.
    :raises ImageUnusable: the image is not signed, its signature is wrong, or the
        file is not the image's.
    :raises ImageRefused: the signer is not trusted.
    :raises InvalidConfiguration: the certificates cannot be read.
    :raises DeviceStuck: the deadline has passed.
    """
    from cryptography.exceptions import InvalidSignature

    digest = Digest.of(image)
    verifier, hashed = _verifier(image, certificates), digest.new()
    file.seek(0)
    while piece := file.read(_PIECE):
        deadlines.left(deadline)
        verifier.update(piece)
        hashed.update(piece)
    if hashed.hexdigest() != digest.value:
        raise exception.ImageUnusable(
            f"the file is not the one of image {properties.title(image)}: "
            f"its {digest.algorithm} is {hashed.hexdigest()}, not "
            f"{digest.value}"
        )
    try:
        verifier.verify()
    except InvalidSignature as error:
        raise _invalid(image, "does not match its file") from error


def _verifier(image: Image, certificates: str) -> _Verifier:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cursive import exception as cursive  # type: ignore[import-untyped]
    from cursive import signature_utils

    from os_acc.bitstreams.certificates import trusted, unfit_key

    parts = [image.properties.get(name, "") for name in policy.SIGNATURE_PROPERTIES]
    if not all(parts):
        raise _invalid(image, "is missing")
    text, method, kind, certificate = parts
    certificate_id = canonical_uuid(certificate)
    if certificate_id is None:
        raise _invalid(
            image,
            f"names certificate {exception.show(certificate)}, which is not a UUID",
        )
    try:
        key = trusted(certificates, certificate_id).public_key()
    except UnsupportedAlgorithm as error:
        raise _invalid(image, "has a certificate with an unknown key") from error
    if (why := unfit_key(key, kind)) is not None:
        raise _invalid(image, why)
    try:
        verifier: _Verifier | None = signature_utils.SignatureKeyType.lookup(
            kind
        ).create_verifier(
            signature_utils.get_signature(text),
            signature_utils.get_hash_method(method),
            key,
        )
    # ValueError: cursive does not catch the error of invalid base64.
    except (cursive.SignatureVerificationError, ValueError) as error:
        raise _invalid(image, f"is invalid: {exception.show(str(error))}") from error
    if verifier is None:
        raise _invalid(image, "is empty")
    return verifier


def _invalid(image: Image, what: str) -> exception.ImageUnusable:
    return exception.ImageUnusable(
        f"the signature of image {properties.title(image)} {what}",
        hint="sign the image again; it was not programmed",
    )
