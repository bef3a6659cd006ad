# SPDX-License-Identifier: Apache-2.0

"""Signatures are verified with real keys and with the trusted certificates."""

import functools
import hashlib
import io
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from os_acc import exception
from os_acc.bitstreams import signature
from os_acc.objects.bitstream import Image
from tests.expected_errors import Expected, kind_of, raises
from tests.unit.bitstreams.image_examples import image
from tests.unit.bitstreams.signing_keys import (
    DAY,
    NOW,
    authority,
    certificate,
    key,
    signed_by,
    usage,
)

CONTENT = bytes(range(256)) * 10_000
CERTIFICATE_ID = "5f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90"


class Store:
    """A directory of certificates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o755)

    def put(self, made: x509.Certificate, file: str = CERTIFICATE_ID) -> Path:
        place = self.path / f"{file}.pem"
        place.write_bytes(made.public_bytes(Encoding.PEM))
        return place

    def verify(
        self, made: Image, content: bytes = CONTENT, deadline: float | None = None
    ) -> None:
        until = time.monotonic() + 600 if deadline is None else deadline
        signature.verify(made, io.BytesIO(content), str(self.path), until)

    def refuses(self, kind: Expected, made: Image, content: bytes = CONTENT) -> str:
        with raises(kind) as caught:
            self.verify(made, content)
        assert kind in (kind_of(caught.value), type(caught.value))
        assert not caught.value.retryable
        return str(caught.value)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "certificates")


def signed_image(content: bytes = CONTENT, **properties: str) -> Image:
    """Return an image that an RSA key has signed, but for these properties."""
    stated = {
        "img_signature": signed_by(key("RSA-PSS"), content),
        "img_signature_hash_method": "SHA-256",
        "img_signature_key_type": "RSA-PSS",
        "img_signature_certificate_uuid": CERTIFICATE_ID,
    }
    named = {f"img_{name}": value for name, value in properties.items()}
    return image(
        properties=stated | named, hash_value=hashlib.sha512(content).hexdigest()
    )


# -- the signature -----------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method", "stated"),
    [
        ("RSA-PSS", hashes.SHA224(), "SHA-224"),
        ("RSA-PSS", hashes.SHA512(), "SHA-512"),
        ("DSA", hashes.SHA256(), "SHA-256"),
        ("ECC_SECP384R1", hashes.SHA384(), "SHA-384"),
        ("ECC_SECP521R1", hashes.SHA512(), "SHA-512"),
    ],
)
def test_what_a_trusted_key_has_signed_is_good(store, kind, method, stated):
    store.put(certificate(key(kind)))
    made = signed_image(
        signature=signed_by(key(kind), CONTENT, method),
        signature_hash_method=stated,
        signature_key_type=kind,
    )
    store.verify(made)
    other = signed_by(key(kind), CONTENT[1:], method)
    stated = signed_image(
        signature=other, signature_hash_method=stated, signature_key_type=kind
    )
    assert "does not match its file" in store.refuses(
        exception.ImageReason.INVALID, stated
    )


def test_a_signature_in_several_lines_is_good(store):
    """As ``base64`` writes it."""
    store.put(certificate(key("RSA-PSS")))
    text = signed_by(key("RSA-PSS"), CONTENT)
    store.verify(signed_image(signature=f"{text[:76]}\n{text[76:]}\n"))


def test_the_signature_of_another_key_is_not_good(store):
    store.put(certificate(key("RSA-PSS", 1)))
    assert "does not match its file" in store.refuses(
        exception.ImageReason.INVALID, signed_image()
    )


@pytest.mark.parametrize(
    "content",
    [b"", CONTENT[:-1], CONTENT + b"\0", CONTENT[:5000] + b"x" + CONTENT[5001:]],
)
def test_a_file_that_is_not_the_images_is_refused_though_it_is_signed(store, content):
    """The hash, not the signature, selects the file that is programmed."""
    store.put(certificate(key("RSA-PSS")))
    made = signed_image(signature=signed_by(key("RSA-PSS"), content))
    assert "sha512" in store.refuses(exception.ImageReason.INVALID, made, content)


@pytest.mark.parametrize(
    "properties",
    [
        {"signature": ""},
        {"signature": "*"},
        {"signature": "abcde"},
        {"signature": "\ud800"},
        {"signature": "QUJD"},
        {"signature_hash_method": ""},
        {"signature_hash_method": "MD5"},
        {"signature_hash_method": "SHA-1"},
        {"signature_hash_method": "sha-256"},
        {"signature_key_type": ""},
        {"signature_key_type": "RSA"},
        {"signature_key_type": "ECC_SECP384R1"},
        {"signature_key_type": "DSA"},
        {"signature_certificate_uuid": ""},
        {"signature_certificate_uuid": "signer"},
        {"signature_certificate_uuid": f"../{CERTIFICATE_ID}"},
        {"signature_certificate_uuid": "/etc/ssl/certs/x.pem"},
    ],
)
def test_a_signature_that_cannot_be_is_refused(store, properties):
    store.put(certificate(key("RSA-PSS")))
    store.refuses(exception.ImageReason.INVALID, signed_image(**properties))


def test_an_image_without_a_signature_is_refused(store):
    assert "missing" in store.refuses(
        exception.ImageReason.INVALID, image(properties={})
    )


def test_an_image_without_a_hash_is_refused(store):
    store.put(certificate(key("RSA-PSS")))
    made = image(properties=signed_image().properties, hash_value="")
    assert "no hash" in store.refuses(exception.ImageReason.INVALID, made)


@pytest.mark.parametrize(
    ("kind", "stated", "why"),
    [
        ("short RSA-PSS", "RSA-PSS", "1024 bits"),
        ("ECC_SECP256R1", "ECC_SECP384R1", "SECP256R1"),
        ("ECC_SECP521R1", "ECC_SECP384R1", "SECP521R1"),
        ("RSA-PSS", "DSA", "of DSA"),
        ("Ed25519", "RSA-PSS", "of RSA-PSS"),
    ],
)
def test_a_key_that_is_weak_or_of_another_kind_is_refused(store, kind, stated, why):
    store.put(certificate(key(kind)))
    made = signed_image(signature_key_type=stated)
    assert why in store.refuses(exception.ImageReason.INVALID, made)


class Endless(io.RawIOBase):
    """A file of this many bytes that keeps none of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.largest = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.left = self.size
        return offset

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.largest = max(self.largest, size)
        count = min(size, self.left)
        self.left -= count
        return bytes(count)


def test_a_file_of_any_size_is_read_in_pieces(store):
    store.put(certificate(key("ECC_SECP384R1")))
    size = 4 * 2**20
    content = bytes(size)
    made = image(
        properties=signed_image(
            signature=signed_by(key("ECC_SECP384R1"), content),
            signature_key_type="ECC_SECP384R1",
        ).properties,
        hash_value=hashlib.sha512(content).hexdigest(),
    )
    file: Any = Endless(size)
    signature.verify(made, file, str(store.path), time.monotonic() + 600)
    assert file.largest <= 2**20


def test_nothing_is_read_on_after_the_deadline(store):
    store.put(certificate(key("RSA-PSS")))
    with pytest.raises(exception.DeviceStuck):
        store.verify(signed_image(), deadline=time.monotonic() - 1)


# -- trusted certificates ----------------------------------------------------


def test_a_certificate_that_is_not_there_is_not_trusted(store):
    store.put(certificate(key("RSA-PSS")), str(uuid.uuid4()))
    stated = store.refuses(exception.ImageRefused, signed_image())
    assert CERTIFICATE_ID in stated
    assert str(store.path) in stated


def test_the_id_of_a_certificate_is_the_same_however_it_is_written(store):
    store.put(certificate(key("RSA-PSS")))
    written = CERTIFICATE_ID.replace("-", "").upper()
    store.verify(signed_image(signature_certificate_uuid=written))


@pytest.mark.parametrize(
    ("stated", "changed"),
    [
        ("was valid until", {"since": NOW - 2 * DAY, "until": NOW - DAY}),
        ("not valid before", {"since": NOW + DAY, "until": NOW + 2 * DAY}),
        ("key usage", {"extensions": (usage("key_encipherment"),)}),
    ],
)
def test_a_certificate_has_to_be_valid_now_and_for_signatures(store, stated, changed):
    store.put(certificate(key("RSA-PSS"), **changed))
    assert stated in store.refuses(exception.ImageRefused, signed_image())


@pytest.mark.parametrize("allowed", ["digital_signature", "content_commitment"])
def test_a_certificate_for_signatures_is_good(store, allowed):
    store.put(certificate(key("RSA-PSS"), extensions=(usage(allowed),)))
    store.verify(signed_image())


ROOT = ("root", key("ECC_SECP384R1", 1))
MIDDLE = ("middle", key("RSA-PSS", 2))
CA_USAGE = usage("key_cert_sign")


def chain(store: Store, **changed: Callable[..., x509.Certificate]) -> None:
    """Add a root, an authority below it, and a signer below that."""
    parts = {
        "root": functools.partial(
            certificate, ROOT[1], subject="root", extensions=(authority(1), CA_USAGE)
        ),
        "middle": functools.partial(
            certificate,
            MIDDLE[1],
            subject="middle",
            issuer=ROOT,
            extensions=(authority(0), CA_USAGE),
        ),
        CERTIFICATE_ID: functools.partial(certificate, key("RSA-PSS"), issuer=MIDDLE),
    }
    for file, make in (parts | changed).items():
        store.put(make(), file)


def test_a_chain_to_a_root_that_is_there_is_trusted(store):
    chain(store)
    store.verify(signed_image())


@pytest.mark.parametrize("kind", ["ECC_SECP521R1", "Ed25519"])
def test_authorities_may_have_keys_of_any_kind(store, kind):
    root = ("root", key(kind, 3))
    store.put(certificate(root[1], subject="root", extensions=(authority(),)), "root")
    store.put(certificate(key("RSA-PSS"), issuer=root))
    store.verify(signed_image())


@pytest.mark.parametrize("missing", ["root", "middle", CERTIFICATE_ID])
def test_a_chain_that_is_broken_is_not_trusted(store, missing):
    chain(store)
    (store.path / f"{missing}.pem").unlink()
    assert "not trusted" in store.refuses(exception.ImageRefused, signed_image())


@pytest.mark.parametrize("broken", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nx"])
def test_an_authority_that_cannot_be_read_vouches_for_nobody(store, broken):
    chain(store)
    (store.path / "aaa.pem").write_bytes(broken)
    store.verify(signed_image())
    (store.path / "middle.pem").write_bytes(broken)
    store.refuses(exception.ImageRefused, signed_image())


@pytest.mark.parametrize(
    "changed",
    [
        {"until": NOW - DAY / 2},
        {"extensions": ()},
        {"extensions": (x509.BasicConstraints(ca=False, path_length=None),)},
        {"extensions": (authority(), usage("digital_signature"))},
        {"issuer": ("root", key("ECC_SECP384R1", 7))},
        {"issuer": ("another root", ROOT[1])},
    ],
    ids=["expired", "no authority", "not one", "not for that", "forged", "elsewhere"],
)
def test_an_authority_that_may_not_vouch_is_not_believed(store, changed):
    values = {"issuer": ROOT, "extensions": (authority(0), CA_USAGE)} | changed
    middle = functools.partial(certificate, MIDDLE[1], subject="middle", **values)
    chain(store, middle=middle)
    store.refuses(exception.ImageRefused, signed_image())


def test_a_root_that_allows_no_authorities_below_it_has_none(store):
    root = functools.partial(
        certificate, ROOT[1], subject="root", extensions=(authority(0),)
    )
    chain(store, root=root)
    store.refuses(exception.ImageRefused, signed_image())


def test_authorities_that_have_issued_each_other_are_no_root(store):
    make = functools.partial(certificate, extensions=(authority(), CA_USAGE))
    root = functools.partial(make, ROOT[1], subject="root", issuer=MIDDLE)
    middle = functools.partial(make, MIDDLE[1], subject="middle", issuer=ROOT)
    chain(store, root=root, middle=middle)
    store.refuses(exception.ImageRefused, signed_image())


@pytest.mark.parametrize("content", [b"", b"rubbish"])
def test_a_file_that_is_no_certificate_is_the_operators_mistake(store, content):
    store.put(certificate(key("RSA-PSS"))).write_bytes(content)
    assert "is not a certificate" in store.refuses(
        exception.InvalidConfiguration, signed_image()
    )


def test_a_directory_that_is_not_there_is_the_operators_mistake(tmp_path):
    store = Store(tmp_path / "certificates")
    store.path.rmdir()
    assert str(store.path) in store.refuses(
        exception.InvalidConfiguration, signed_image()
    )


def test_a_directory_that_everybody_can_write_to_is_not_believed(store):
    store.put(certificate(key("RSA-PSS")))
    store.path.chmod(0o777)
    assert "world-writable" in store.refuses(
        exception.InvalidConfiguration, signed_image()
    )


UNSAFE = {
    "file": lambda place, _elsewhere: place.chmod(0o666),
    "link": lambda place, elsewhere: place.rename(elsewhere),
    "link to a link": lambda place, elsewhere: elsewhere.symlink_to(
        place.rename(place.parent.parent / "safe.pem")
    ),
}


@pytest.mark.parametrize("expose", UNSAFE.values(), ids=UNSAFE)
@pytest.mark.parametrize("is_signer", [True, False])
def test_a_certificate_that_everybody_can_replace_is_not_believed(
    store, tmp_path, expose, is_signer
):
    store.put(certificate(key("RSA-PSS"), issuer=None if is_signer else ROOT))
    if not is_signer:
        store.put(
            certificate(ROOT[1], subject="root", extensions=(authority(),)), "root"
        )
    place = store.path / f"{CERTIFICATE_ID if is_signer else 'root'}.pem"
    store.verify(signed_image())
    (tmp_path / "tmp").mkdir()
    elsewhere = tmp_path / "tmp" / "certificate.pem"
    expose(place, elsewhere)
    if not place.exists():
        place.symlink_to(elsewhere)
        store.verify(signed_image())
        elsewhere.parent.chmod(0o1777)
    kind = exception.InvalidConfiguration if is_signer else exception.ImageRefused
    store.refuses(kind, signed_image())


def test_a_directory_that_cannot_be_listed_is_the_operators_mistake(store, monkeypatch):
    # The issuer is an authority that would have to be looked up.
    private = key("RSA-PSS")
    store.put(certificate(private, issuer=("root", key("RSA-PSS", 1))))

    def refuse(_path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    assert str(store.path) in store.refuses(
        exception.InvalidConfiguration, signed_image()
    )
