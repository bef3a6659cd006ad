# SPDX-License-Identifier: Apache-2.0

"""Verification of image signatures, and the certificates of trusted signers.

The service and the privileged helper check the four properties ``img_signature*`` as
Glance and Nova do (Glance: "Image Signature Verification"). Those services read
certificates from a key manager; a compute node would need credentials for it, and
could not program during its outages. Here a certificate is trusted if it is in the
operator's directory, is valid now, and is self-signed or was issued by authorities that
are in the directory and valid too.
"""

from __future__ import annotations

import base64
import datetime
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, padding, rsa, utils

from os_acc import deadlines, exception
from os_acc.bitstreams import policy, properties
from os_acc.objects.bitstream import Digest, Image
from os_acc.objects.instance import canonical_uuid

_HASHES: Final[Mapping[str, tuple[str, hashes.HashAlgorithm]]] = {
    "SHA-224": ("sha224", hashes.SHA224()),
    "SHA-256": ("sha256", hashes.SHA256()),
    "SHA-384": ("sha384", hashes.SHA384()),
    "SHA-512": ("sha512", hashes.SHA512()),
}
# The curves of Glance's documentation.
_CURVES: Final = (
    "SECT409K1", "SECT409R1", "SECT571K1", "SECT571R1", "SECP384R1", "SECP521R1",
)  # fmt: skip
_KINDS: Final = frozenset({"RSA-PSS", "DSA", *(f"ECC_{curve}" for curve in _CURVES)})
_PIECE: Final = 2**20
_LARGEST: Final = 2**20
# Authorities between a signer and a root, to end at a cycle.
_DEEPEST: Final = 5
# Linux follows 40 links to a file.
_MOST_LINKS: Final = 40
# NIST SP 800-57: shorter keys must not be used for signatures.
_SHORTEST_KEY: Final = 2048


class SignatureUnusable(Exception):
    """A signature that is invalid for any content; the message follows its name."""


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
    digest = Digest.of(image)
    given = [image.properties.get(name, "") for name in policy.SIGNATURE_PROPERTIES]
    if not all(given):
        raise _invalid(image, "is missing")

    def digest_for(algorithm: str) -> bytes:
        signed, hashed = hashlib.new(algorithm), digest.new()
        file.seek(0)
        while piece := file.read(_PIECE):
            deadlines.left(deadline)
            signed.update(piece)
            hashed.update(piece)
        if hashed.hexdigest() != digest.value:
            raise exception.ImageUnusable(
                f"the file is not the one of image {properties.title(image)}: "
                f"its {digest.algorithm} is {hashed.hexdigest()}, not {digest.value}"
            )
        return signed.digest()

    try:
        check(given, certificates, digest_for)
    except SignatureUnusable as error:
        raise _invalid(image, str(error)) from error
    except InvalidSignature as error:
        raise _invalid(image, "does not match its file") from error


def check(
    given: Sequence[str], certificates: str, digest_for: Callable[[str], bytes]
) -> None:
    """Check the signature of a content by a trusted signer.

    :param given: the values of :data:`.policy.SIGNATURE_PROPERTIES`.
    :param digest_for: returns the digest of the content by an algorithm of hashlib.
    :raises SignatureUnusable: a value is invalid, or does not suit the key.
    :raises InvalidSignature: it is the signature of another content or key.
    :raises ImageRefused: the signer is not trusted.
    :raises InvalidConfiguration: the certificates cannot be read.
    """
    text, method, kind, certificate = given
    if method not in _HASHES:
        raise SignatureUnusable("has an unknown hash method")
    certificate_id = canonical_uuid(certificate)
    if certificate_id is None:
        shown = exception.show(certificate)
        raise SignatureUnusable(f"names certificate {shown}, which is not a UUID")
    try:
        key: Any = trusted(certificates, certificate_id).public_key()
    except UnsupportedAlgorithm as error:
        raise SignatureUnusable("has a certificate with an unknown key") from error
    if kind not in _KINDS:
        raise SignatureUnusable("has an unknown key type")
    name, algorithm = _HASHES[method]
    arguments = _arguments(key, kind, algorithm)
    try:
        # Tools break the lines of base64.
        signature = base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise SignatureUnusable("is not base64") from error
    digest = digest_for(name)
    try:
        key.verify(signature, digest, *arguments)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SignatureUnusable(f"cannot be verified: {error}") from error


def _arguments(
    key: object, kind: str, algorithm: hashes.HashAlgorithm
) -> tuple[object, ...]:
    """Return the arguments of the key's ``verify()`` behind signature and digest.

    :raises SignatureUnusable: the key cannot verify this kind of signature.
    """
    own, bits = "another kind", _SHORTEST_KEY
    found: tuple[object, ...] = ()
    hashed = utils.Prehashed(algorithm)
    match key:
        case rsa.RSAPublicKey():
            pss = padding.PSS(padding.MGF1(algorithm), padding.PSS.MAX_LENGTH)
            own, found, bits = "RSA-PSS", (pss, hashed), key.key_size
        case dsa.DSAPublicKey():
            own, found, bits = "DSA", (hashed,), key.key_size
        case ec.EllipticCurvePublicKey():
            own, found = f"ECC_{key.curve.name.upper()}", (ec.ECDSA(hashed),)
    if own != kind:
        raise SignatureUnusable(f"is of {kind}, but the certificate's key is of {own}")
    if bits < _SHORTEST_KEY:
        raise SignatureUnusable(
            f"is by a key of {bits} bits; at least {_SHORTEST_KEY} are required"
        )
    return found


def _invalid(image: Image, what: str) -> exception.ImageUnusable:
    return exception.ImageUnusable(
        f"the signature of image {properties.title(image)} {what}",
        hint="sign the image again; it was not programmed",
    )


# -- certificates --------------------------------------------------------------


def survey(directory: str) -> dict[str, str]:
    """Return the reason why each certificate is unusable, or '', by its name.

    :raises InvalidConfiguration: the directory is unreadable or world-writable.
    """
    _check_writers(directory)
    return {name: _why_unusable(directory, name) for name in _names(directory)}


def is_signer(name: str) -> bool:
    """Return whether a name is that of a signer's certificate, not an authority's."""
    stem = name.removesuffix(".pem")
    return canonical_uuid(stem) == stem


def trusted(directory: str, certificate_id: str) -> x509.Certificate:
    """Return a certificate that is trusted now.

    :param certificate_id: canonical UUID; the file is ``<id>.pem``.
    :raises ImageRefused: it does not exist, is not valid now, is not for
        signatures, or its issuer is not trusted.
    :raises InvalidConfiguration: the directory or the file is unreadable, or any user
        could replace the file.
    """
    _check_writers(directory)
    path = os.path.join(directory, f"{certificate_id}.pem")
    try:
        certificate = _load(path)[0]
    except FileNotFoundError as error:
        raise exception.ImageRefused(
            f"certificate {certificate_id} is not trusted: there is no such file",
            hint=f"if its owner may sign images, copy it to {path}",
        ) from error
    except OSError as error:
        raise _unusable(path, error) from error
    except ValueError as error:
        raise exception.InvalidConfiguration(
            f"{path} is not a certificate: {exception.show(str(error))}"
        ) from error
    if (why := _not_now(certificate)) or (why := _not_for_signatures(certificate)):
        raise exception.ImageRefused(f"certificate {certificate_id} {why}")
    if not _anchored(certificate, tuple(_authorities(directory)), below=0):
        raise exception.ImageRefused(
            f"certificate {certificate_id} was issued by "
            f"{exception.show(certificate.issuer.rfc4514_string())}, "
            "which is not trusted",
            hint=f"copy the issuer's valid certificate into {directory}",
        )
    return certificate


def _why_unusable(directory: str, name: str) -> str:
    try:
        if is_signer(name):
            trusted(directory, name.removesuffix(".pem"))
            return ""
        expired = map(_not_now, _load(os.path.join(directory, name)))
        return next(filter(None, expired), "")
    except exception.OsAccError as error:
        return error.message
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not a certificate: {exception.show(str(error))}"


def _anchored(
    certificate: x509.Certificate, authorities: tuple[x509.Certificate, ...], below: int
) -> bool:
    """Return whether the chain ends at a self-signed certificate.

    :param below: authorities between this certificate and the signer.
    """
    if _issued(certificate, certificate):
        return True
    return below < _DEEPEST and any(
        _may_issue(authority, below)
        and _issued(authority, certificate)
        and _anchored(authority, authorities, below + 1)
        for authority in authorities
    )


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    # The names differ; the key cannot sign; or it is not the signing key.
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _may_issue(authority: x509.Certificate, below: int) -> bool:
    constraints = _extension(authority, x509.BasicConstraints)
    usage = _extension(authority, x509.KeyUsage)
    return (
        not _not_now(authority)
        and isinstance(constraints, x509.BasicConstraints)
        and constraints.ca
        and (constraints.path_length is None or below <= constraints.path_length)
        and (not isinstance(usage, x509.KeyUsage) or usage.key_cert_sign)
    )


def _not_now(certificate: x509.Certificate) -> str:
    now = datetime.datetime.now(datetime.UTC)
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc.isoformat()}"
    if now > certificate.not_valid_after_utc:
        return f"was valid until {certificate.not_valid_after_utc.isoformat()}"
    return ""


def _not_for_signatures(certificate: x509.Certificate) -> str:
    usage = _extension(certificate, x509.KeyUsage)
    if isinstance(usage, x509.KeyUsage) and not (
        usage.digital_signature or usage.content_commitment
    ):
        return "has a key usage without signatures"
    return ""


def _extension(
    certificate: x509.Certificate, kind: type[x509.ExtensionType]
) -> x509.ExtensionType | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _authorities(directory: str) -> Iterator[x509.Certificate]:
    for name in _names(directory):
        try:
            yield from _load(os.path.join(directory, name))
        # An unreadable authority vouches for none; others may.
        except (OSError, ValueError):
            continue


def _names(directory: str) -> list[str]:
    try:
        return sorted(each for each in os.listdir(directory) if each.endswith(".pem"))
    except OSError as error:
        raise _unusable(directory, error) from error


def _load(path: str) -> list[x509.Certificate]:
    with open(path, "rb") as file:
        modes = [os.fstat(file.fileno()).st_mode]
        while os.path.islink(path) and len(modes) <= _MOST_LINKS:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            modes.append(os.stat(os.path.dirname(path)).st_mode)
        if any(mode & stat.S_IWOTH for mode in modes):
            raise PermissionError(errno.EPERM, "any user could replace it")
        found = x509.load_pem_x509_certificates(file.read(_LARGEST))
    for certificate in found:
        # These properties parse lazily: errors are to occur here.
        _ = certificate.extensions, certificate.issuer, certificate.subject
    return found


def _check_writers(directory: str) -> None:
    try:
        mode = os.stat(directory).st_mode
    except OSError as error:
        raise _unusable(directory, error) from error
    if mode & stat.S_IWOTH:
        raise exception.InvalidConfiguration(
            f"{directory} is world-writable: any user could add a trusted signer"
        )


def _unusable(path: str, error: OSError) -> exception.InvalidConfiguration:
    return exception.InvalidConfiguration(
        f"cannot read {path}: {error.strerror}",
        hint="check certificates in [os_acc_bitstreams]",
    )
