# SPDX-License-Identifier: Apache-2.0

"""Keys, signatures and certificates."""

from __future__ import annotations

import base64
import datetime
import functools
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
SHA256 = hashes.SHA256()


@functools.cache
def key(kind: str, number: int = 0) -> Any:
    """Return a private key; another one for another number."""
    match kind:
        case "RSA-PSS":
            return rsa.generate_private_key(65537, 2048)
        case "short RSA-PSS":
            return rsa.generate_private_key(65537, 1024)
        case "DSA":
            return dsa.generate_private_key(2048)
        case "ECC_SECP384R1":
            return ec.generate_private_key(ec.SECP384R1())
        case "ECC_SECP521R1":
            return ec.generate_private_key(ec.SECP521R1())
        case "ECC_SECP256R1":
            return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def signed_by(private: Any, content: bytes, method: Any = SHA256) -> str:
    """Return a signature made as Glance's documentation describes it."""
    if isinstance(private, rsa.RSAPrivateKey):
        pss = padding.PSS(padding.MGF1(method), padding.PSS.MAX_LENGTH)
        raw = private.sign(content, pss, method)
    elif isinstance(private, ec.EllipticCurvePrivateKey):
        raw = private.sign(content, ec.ECDSA(method))
    else:
        raw = private.sign(content, method)
    return base64.b64encode(raw).decode()


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def certificate(
    private: Any,
    *,
    subject: str = "signer",
    issuer: tuple[str, Any] | None = None,
    since: datetime.datetime = NOW - DAY,
    until: datetime.datetime = NOW + DAY,
    extensions: tuple[x509.ExtensionType, ...] = (),
    method: Any = SHA256,
) -> x509.Certificate:
    """Return a certificate; without an issuer it is self-signed."""
    issuer_name, issuer_key = issuer or (subject, private)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer_name))
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    plain = isinstance(issuer_key, ed25519.Ed25519PrivateKey)
    return builder.sign(issuer_key, None if plain else method)


def authority(length: int | None = None) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=True, path_length=length)


def usage(*allowed: str) -> x509.KeyUsage:
    every = (
        *("digital_signature", "content_commitment", "key_encipherment"),
        *("data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"),
        *("encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{each: each in allowed for each in every})
