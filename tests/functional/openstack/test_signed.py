# SPDX-License-Identifier: Apache-2.0

"""If signatures are required, only signed bitstreams are programmed."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.testing import HostSpec, TestHost, image_directory
from os_acc.testing.dfl import payload
from tests.expected_errors import Expected, kind_of, raises
from tests.functional.openstack import keys
from tests.functional.openstack.cloud import Cloud, sha512
from tests.functional.openstack.service import Service
from tests.unit.bitstreams.signing_keys import certificate, key, signed_by
from tests.unit.fpga import CARD, INTERFACE, OTHER_CARD, POWER_ON, held, two_cards

KINDS = ["RSA-PSS", "ECC_SECP384R1", "DSA"]
HASH, HASH_NAME = hashes.SHA384(), "SHA-384"


class SignedHost(TestHost):
    """Accepts only bitstreams whose signer the operator trusts.

    :ivar certificates: the directory of the trusted certificates.
    """

    def __init__(self, place: Path, spec: HostSpec, cloud: Cloud) -> None:
        self.certificates = place / "certificates"
        self.certificates.mkdir(mode=0o755)
        signed = {
            "source": "glance",
            "signature": "required",
            "certificates": str(self.certificates),
        }
        groups = {options.GROUP.name: signed}
        super().__init__(place, spec, groups=groups, read=cloud.conf)

    def trust(self, private: Any, **about: Any) -> str:
        """Add a key's certificate; return the certificate's id."""
        return put(self.certificates, private, **about)

    def refuses(
        self, kind: Expected, content: str, **requested: str
    ) -> exception.OsAccError:
        """Check that a plug fails with this error and changes nothing."""
        with raises(kind, match=content) as caught:
            self.plug(1, CARD, **requested)
        assert kind in (kind_of(caught.value), type(caught.value))
        assert not caught.value.retryable
        assert self.programmings() == []
        assert held(self) == POWER_ON
        assert self.manager.store.leases() == ()
        return caught.value


def put(directory: Path, private: Any, **about: Any) -> str:
    certificate_id = str(uuid.uuid4())
    made = certificate(private, **about)
    place = directory / f"{certificate_id}.pem"
    place.write_bytes(made.public_bytes(Encoding.PEM))
    return certificate_id


@pytest.fixture
def bench(cloud: Cloud, tmp_path: Path) -> Iterator[SignedHost]:
    with SignedHost(tmp_path, two_cards(), cloud) as bench:
        yield bench


@pytest.fixture
def data(function: str) -> bytes:
    """Return a bitstream of this function."""
    return image_directory.gbs(INTERFACE, function, payload(function))


def signature(
    data: bytes, certificate_id: str, kind: str = "RSA-PSS", private: Any = None
) -> dict[str, str]:
    """Return the image properties with the signature and its certificate."""
    return {
        "img_signature": signed_by(private or key(kind), data, HASH),
        "img_signature_hash_method": HASH_NAME,
        "img_signature_key_type": kind,
        "img_signature_certificate_uuid": certificate_id,
    }


@pytest.fixture
def upload(cloud: Cloud, function: str, data: bytes) -> Callable[..., str]:
    """Upload the bitstream, then sign it, as in the manual; return the image's id."""

    def upload(**signature: str) -> str:
        content = {"tags": ["FPGA"], "accel:function_id": function}
        image_id = cloud.upload(data, name=f"image {function}", **content)
        changes = [
            {"op": "add", "path": f"/{name}", "value": value}
            for name, value in signature.items()
        ]
        cloud.images("admin", "service").patch(
            f"/v2/images/{image_id}",
            json=changes,
            headers={"Content-Type": "application/openstack-images-v2.1-json-patch"},
        )
        return image_id

    return upload


# -- signers and signed data ----------------------------------------------------


def test_what_nobody_has_signed_is_refused(
    cloud: Cloud, bench: SignedHost, upload: Callable[..., str], function: str
) -> None:
    image_id = upload()
    bench.refuses(exception.ImageRefused, "not signed", bitstream_id=image_id)
    name = f"image {function}"
    bench.refuses(exception.ImageNotFound, "not signed", bitstream_name=name)
    assert cloud.downloads(image_id) == []


def test_what_nobody_has_signed_is_not_in_the_way(
    bench: SignedHost, upload: Callable[..., str], function: str, data: bytes
) -> None:
    upload()
    upload(**signature(data, bench.trust(key("RSA-PSS"))))
    bench.plug(1, CARD, bitstream_name=f"image {function}")
    assert held(bench) == function


def test_who_has_glances_store_and_its_database_cannot_sign(
    cloud: Cloud, bench: SignedHost, upload: Callable[..., str], data: bytes
) -> None:
    image_id = upload(**signature(data, bench.trust(key("RSA-PSS"))))
    evil = data[:-1] + bytes([data[-1] ^ 1])
    cloud.file(image_id).write_bytes(evil)
    with (
        contextlib.closing(sqlite3.connect(cloud.home / "glance.sqlite")) as base,
        base,
    ):
        base.execute(
            "UPDATE images SET os_hash_value = ? WHERE id = ?",
            (sha512(evil), image_id),
        )
    bench.refuses(
        exception.ImageReason.INVALID, "does not match its file", bitstream_id=image_id
    )


def test_what_is_on_the_host_already_is_refused_once_its_signer_is_not_trusted(
    bench: SignedHost, upload: Callable[..., str], data: bytes
) -> None:
    signer = bench.trust(key("RSA-PSS"))
    image_id = upload(**signature(data, signer))
    bench.plug(1, CARD, bitstream_id=image_id)
    (bench.certificates / f"{signer}.pem").unlink()
    with pytest.raises(exception.ImageRefused, match="is not trusted"):
        bench.plug(2, OTHER_CARD, bitstream_id=image_id)
    assert bench.programmings() == ["done"]
    assert held(bench, OTHER_CARD) == POWER_ON


# -- signatures in Glance itself ------------------------------------------------


@pytest.fixture(scope="module")
def keyed(cloud: Cloud) -> Iterator[Service]:
    """Yield the same Glance again, with a key manager."""
    known = cloud.home / "key-manager"
    known.mkdir()
    content = (cloud.home / "glance-api.conf").read_text()
    (known / "glance-api.conf").write_text(
        f"{content}[key_manager]\nbackend = {keys.NAME}\n"
    )
    service = Service(
        "keyed",
        "glance.wsgi.api",
        "/",
        cloud.home,
        {"OS_GLANCE_CONFIG_DIR": str(known), keys.PLACE: str(known)},
    )
    service.start()
    yield service
    service.kill()


def send(cloud: Cloud, service: Service, image_id: str, data: bytes) -> int:
    """Upload the data of an image; return Glance's status."""
    http = cloud.images("admin", "service")
    http.endpoint_override = service.url
    answer = http.put(
        f"/v2/images/{image_id}/file",
        data=data,
        headers={"Content-Type": "application/octet-stream"},
        raise_exc=False,
    )
    return answer.status_code


@pytest.fixture
def announce(cloud: Cloud, function: str) -> Callable[..., str]:
    """Create an image with a signature before it has data; return its id."""

    def announce(**signature: str) -> str:
        content = {"tags": ["FPGA"], "accel:function_id": function, **signature}
        return cloud.upload(None, **content)

    return announce


def test_glance_takes_no_data_that_it_has_no_key_manager_to_verify_with(
    cloud: Cloud, bench: SignedHost, announce: Callable[..., str], data: bytes
) -> None:
    image_id = announce(**signature(data, bench.trust(key("RSA-PSS"))))
    assert send(cloud, cloud.glance, image_id, data) == 400
    assert not cloud.file(image_id).exists()
    bench.refuses(exception.ImageRefused, "queued", bitstream_id=image_id)


@pytest.mark.parametrize("kind", KINDS)
def test_what_glance_takes_for_signed_is_programmed(
    cloud: Cloud,
    keyed: Service,
    bench: SignedHost,
    announce: Callable[..., str],
    function: str,
    data: bytes,
    kind: str,
) -> None:
    signer = bench.trust(key(kind))
    shutil.copy(bench.certificates / f"{signer}.pem", cloud.home / "key-manager")
    image_id = announce(**signature(data, signer, kind))
    assert send(cloud, keyed, image_id, data + b"\0") == 400
    assert send(cloud, keyed, image_id, data) == 204
    bench.plug(1, CARD, bitstream_id=image_id)
    assert held(bench) == function


def test_whom_glance_trusts_is_not_whom_the_operator_of_a_host_trusts(
    cloud: Cloud,
    keyed: Service,
    bench: SignedHost,
    announce: Callable[..., str],
    data: bytes,
) -> None:
    signer = put(cloud.home / "key-manager", key("RSA-PSS"))
    image_id = announce(**signature(data, signer))
    assert send(cloud, keyed, image_id, data) == 204
    bench.refuses(exception.ImageRefused, "is not trusted", bitstream_id=image_id)
