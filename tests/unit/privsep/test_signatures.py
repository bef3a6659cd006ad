# SPDX-License-Identifier: Apache-2.0

"""The helper verifies images before programming if root requires signatures."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from os_acc.objects.pci import PciAddress
from os_acc.privsep import privileged_conf
from os_acc.privsep.outcome import CallResult, Outcome
from tests.stress.hostile_client import RETURNED, connected
from tests.unit.bitstreams.signing_keys import (
    DAY,
    NOW,
    authority,
    certificate,
    key,
    signed_by,
    usage,
)
from tests.unit.fpga_host import (
    CARD,
    DFL_INTERFACE,
    HEAD,
    PAYLOAD,
    TAIL,
    UNSIGNED,
    FpgaHost,
)

SIGNER = "5f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90"
CONTENT = HEAD + PAYLOAD + TAIL
Signature = tuple[str, str, str, str]


@pytest.fixture
def trust(host: FpgaHost) -> Callable[..., Path]:
    """Return ``trust(certificate, ...)``, which writes root's files for signatures."""

    def trust(*found: x509.Certificate, requires: str = "required") -> Path:
        directory = Path(host.kernel.root, "etc/os-acc/certificates")
        directory.mkdir(parents=True)
        for number, each in enumerate(found):
            name = f"{SIGNER}.pem" if number == 0 else f"authority-{number}.pem"
            (directory / name).write_bytes(each.public_bytes(Encoding.PEM))
        Path(host.kernel.root, *privileged_conf.PATH).write_text(
            f'[os_acc]\ndevice_spec = {{"address": "{CARD}"}}\n'
            f"state_path = {host.cache.parent}\n"
            f"[os_acc_bitstreams]\nsignature = {requires}\n"
            "certificates = /etc/os-acc/certificates\n"
        )
        return directory

    return trust


def signature(
    content: bytes = CONTENT, kind: str = "RSA-PSS", private: Any = None
) -> Signature:
    return (signed_by(private or key(kind), content), "SHA-256", kind, SIGNER)


def refusal(host: FpgaHost, given: Signature) -> str:
    """Return the reason why an image is refused, and check that no write happened."""
    result = host.program(signature=given)
    assert (result.outcome, result.errno, result.step) == (
        Outcome.REFUSED,
        errno.EKEYREJECTED,
        "signature",
    )
    assert host.kernel.writes() == []
    return result.observed


@pytest.mark.parametrize("kind", ["RSA-PSS", "DSA", "ECC_SECP384R1"])
def test_an_image_of_a_trusted_signer_is_programmed(host, trust, kind):
    trust(certificate(key(kind)))
    assert host.program(signature=signature(kind=kind)).outcome == Outcome.OK


def test_an_image_without_a_signature_is_not(host, trust):
    trust(certificate(key("RSA-PSS")))
    assert "not signed" in refusal(host, UNSIGNED)


def test_a_signature_of_other_bytes_is_refused(host, trust):
    trust(certificate(key("RSA-PSS")))
    assert "not that of the image" in refusal(host, signature(CONTENT + b"more"))


def test_a_signature_by_another_key_is_refused(host, trust):
    trust(certificate(key("RSA-PSS")))
    private = key("RSA-PSS", 1)
    assert "not that of the image" in refusal(host, signature(private=private))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (0, "%", "base64"),
        (1, "MD5", "hash method"),
        (2, "DSA", "of DSA"),
        (2, "ECC_SECP192R1", "unknown"),
        (3, "../../etc/passwd", "UUID"),
        (3, "99999999-7c1d-4b0e-9a55-0d6c1b7e8f90", "trusted"),
    ],
)
def test_a_signature_that_cannot_be_used_is_refused(host, trust, field, value, why):
    trust(certificate(key("RSA-PSS")))
    given = list(signature())
    given[field] = value
    assert why in refusal(host, tuple(given))


def test_an_expired_certificate_is_refused(host, trust):
    trust(certificate(key("RSA-PSS"), since=NOW - 2 * DAY, until=NOW - DAY))
    assert "was valid until" in refusal(host, signature())


def test_a_certificate_of_an_unknown_authority_is_refused(host, trust):
    issued = certificate(key("RSA-PSS"), issuer=("authority", key("RSA-PSS", 2)))
    trust(issued)
    assert "not trusted" in refusal(host, signature())


def test_a_certificate_of_an_authority_of_roots_is_trusted(host, trust):
    above = key("RSA-PSS", 2)
    extensions = (authority(), usage("key_cert_sign"))
    trust(
        certificate(key("RSA-PSS"), issuer=("authority", above)),
        certificate(above, subject="authority", extensions=extensions),
    )
    assert host.program(signature=signature()).outcome == Outcome.OK


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_certificates_that_others_can_write_trust_no_signer(host, trust, mode):
    trust(certificate(key("RSA-PSS"))).chmod(mode)
    assert "users other than root can write" in refusal(host, signature())


def test_a_certificate_that_others_can_write_trusts_no_signer(host, trust):
    (trust(certificate(key("RSA-PSS"))) / f"{SIGNER}.pem").chmod(0o666)
    assert "users other than root can write" in refusal(host, signature())


def test_a_directory_that_is_not_there_trusts_no_signer(host, trust):
    directory = trust(certificate(key("RSA-PSS")))
    directory.rename(directory.with_name("elsewhere"))
    assert "cannot read" in refusal(host, signature())


def test_where_root_requires_none_no_signature_is_looked_at(host, trust):
    trust(requires="off")
    assert host.program(signature=("%", "", "", "")).outcome == Outcome.OK


@pytest.mark.parametrize("requires", ["", "perhaps"])
def test_a_requirement_that_is_none_allows_nothing(host, trust, requires):
    trust(certificate(key("RSA-PSS")), requires=requires)
    assert host.program(signature=signature()).outcome == Outcome.DENIED
    assert host.kernel.writes() == []
    assert privileged_conf.current().mode is privileged_conf.LimitMode.BROKEN


@pytest.mark.parametrize("kind", ["RSA-PSS", "DSA", "ECC_SECP384R1"])
def test_a_confined_helper_has_what_it_needs_to_verify(host, trust, kind):
    """cryptography imports some of its parts on first use."""
    above = key("ECC_SECP521R1", 2)
    extensions = (authority(), usage("key_cert_sign"))
    trust(
        certificate(key(kind), issuer=("authority", above)),
        certificate(above, subject="authority", extensions=extensions),
    )
    place = PciAddress.parse(CARD)
    with connected("image", host.kernel.root) as client:
        for given, step in (
            (signature(kind=kind), ""),
            (signature(b"other bytes", kind=kind), "signature"),
            ((*signature(kind=kind)[:3], "7" * 32), "signature"),
        ):
            kind_of_answer, answer, *more = client.call(
                "os_acc.privsep.fpga.program",
                *(place.parts, host.identity(CARD), 0, DFL_INTERFACE),
                *((host.digest.algorithm, host.digest.value), len(HEAD), len(PAYLOAD)),
                *(1, 60_000, given),
            )
            assert kind_of_answer == RETURNED, (answer, more)
            assert CallResult(*answer).step == step, answer
