# SPDX-License-Identifier: Apache-2.0

"""``os-acc check`` examines the source of images, their signers and the cache."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from os_acc.cmd import environment
from os_acc.testing import hosts, image_directory
from tests.unit.bitstreams.fake_source import id_of
from tests.unit.bitstreams.glance_double import Double
from tests.unit.bitstreams.image_examples import FUNCTION_ID, REGION_ID
from tests.unit.bitstreams.signing_keys import DAY, NOW, authority, certificate, key
from tests.unit.cmd.console import Console
from tests.unit.cmd.images import Images

SIGNER = "5f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90"
ANOTHER = "6f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90"
ROOMY = 1 << 40
LARGEST = 50_000_000
CACHE_SIZE = 100_000_000


@pytest.fixture
def signers(console: Console, tmp_path: Path) -> Path:
    """Require signatures; return the directory of the trusted certificates."""
    place = tmp_path / "certificates"
    place.mkdir()
    lines = ("[os_acc_bitstreams]", "signature = required", f"certificates = {place}")
    console.configure(more="\n".join(lines))
    return place


@pytest.fixture
def kept(console: Console, images: Images) -> Path:
    """Fetch one image into a cache with room for the largest; return its directory."""
    text = console.config_file.read_text()
    console.config_file.write_text(f"{text}\nmax_image_size = {LARGEST}\n")
    console.json("bitstream", "fetch", id_of(1))
    return Path(console.bench.state_path, "bitstreams")


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return ``roomy(size)``, which sets the free bytes of every disk."""

    def leave(size: int) -> None:
        space = SimpleNamespace(f_bavail=size, f_frsize=1, f_flag=0, f_files=0)
        monkeypatch.setattr(os, "statvfs", lambda _path: space)

    leave(ROOMY)
    return leave


def ask(console: Console, server: Double, **changes: str) -> None:
    """Configure the Image service."""
    options = {
        **server.credentials(),
        "connect_retries": "0",
        "status_code_retries": "0",
        **changes,
    }
    lines = (f"{name} = {value}" for name, value in options.items())
    console.configure(more="\n".join(("[os_acc_glance]", *lines)))


def only(console: Console, check: str) -> dict[str, str]:
    (found,) = console.checks()[check]
    return found


def trust(place: Path, name: str, **changes: object) -> None:
    """Add a self-signed certificate."""
    made = certificate(key("ECC_SECP256R1"), **changes)
    (place / f"{name}.pem").write_bytes(made.public_bytes(Encoding.PEM))


# -- the source ---------------------------------------------------------------


@pytest.mark.usefixtures("roomy")
def test_a_host_without_fpgas_needs_neither_source_nor_signers_nor_cache(console):
    checks = console.checks()
    names = ("source", "signers", "cache", "files")
    found = [row for each in names for row in checks[f"image {each}"]]
    assert [row["Result"] for row in found] == ["ok"] * 4
    source, signers, cache, files = (row["What"] for row in found)
    assert "no device of this host needs one" in source
    assert signers == "signatures are not required"
    assert cache.startswith("there is no cache yet")
    assert files.startswith("there is no cache yet")
    assert not os.path.exists(f"{console.bench.state_path}/bitstreams")


def test_a_region_that_can_be_programmed_needs_one(make_bench, tmp_path):
    console = Console(make_bench(hosts.fpga_host()), tmp_path)
    console.configure('{"address": "0000:3b:00.0"}')
    found = only(console, "image source")
    assert found["Result"] == "warning"
    assert "region 0 of 0000:3b:00.0" in found["What"]
    assert "[os_acc_glance] auth_type is not set" in found["What"]
    assert "auth_section" in found["Hint"]


def test_a_glance_that_answers_passes(console, glance):
    glance.add(b"1234", tags=["FPGA"])
    ask(console, glance)
    found = only(console, "image source")
    assert (found["Result"], found["Hint"]) == ("ok", None)
    assert found["What"].startswith("Glance answers")
    assert glance.count("GET /v2/images?") == 1
    assert glance.count("GET /v2/images/") == 0


def test_a_glance_without_bitstreams_is_a_warning(console, glance):
    glance.add(b"1234", tags=["cirros"])
    ask(console, glance)
    found = only(console, "image source")
    assert found["Result"] == "warning"
    assert "no visible image with the tag FPGA" in found["What"]


def test_a_wrong_password_fails_with_what_to_look_at(console, glance):
    ask(console, glance, password="wrong")
    found = only(console, "image source")
    assert found["Result"] == "failed"
    assert "the credentials are rejected" in found["What"]
    assert "[os_acc_glance]" in found["Hint"]
    assert console.run("check").status == 1


def test_a_directory_that_answers_passes(console, images):
    found = only(console, "image source")
    assert found["Result"] == "ok"
    assert found["What"].startswith(f"{images.place} answers")


def test_options_that_cannot_be_used_are_told_once(console):
    console.configure(more="[os_acc_bitstreams]\nsource = directory\ndirectory = here")
    checks = console.checks()
    rows = [row for name, each in checks.items() if "image" in name for row in each]
    failed = [row for row in rows if row["Result"] == "failed"]
    assert [row["Check"] for row in failed] == ["image source"]
    assert "'here', not an absolute path" in failed[0]["What"]


# -- signers ------------------------------------------------------------------


def test_a_certificate_that_is_trusted_passes(console, signers):
    trust(signers, SIGNER)
    found = only(console, "image signers")
    assert found["Result"] == "ok"
    assert found["What"].endswith("may sign images: 1")


def test_certificates_that_have_expired_are_named(console, signers):
    trust(signers, SIGNER)
    trust(signers, ANOTHER, until=NOW - DAY / 2)
    trust(signers, "root", until=NOW - DAY / 2, extensions=(authority(),))
    *expired, trusted = console.checks()["image signers"]
    assert trusted["Result"] == "ok"
    assert [each["Result"] for each in expired] == ["warning", "warning"]
    for name, row in zip((ANOTHER, "root"), expired, strict=True):
        assert f"{name}.pem" in row["What"]
        assert "was valid until" in row["What"]


def test_where_nobody_may_sign_each_image_is_refused(console, signers):
    (signers / f"{SIGNER}.pem").write_text("no certificate")
    strange, missing = console.checks()["image signers"]
    assert strange["Result"] == "warning"
    assert "is not a certificate" in strange["What"]
    assert missing["Result"] == "failed"
    assert "<certificate uuid>.pem" in missing["Hint"]


@pytest.mark.parametrize("change", [Path.rmdir, lambda path: path.chmod(0o777)])
def test_a_trust_store_that_cannot_be_used_fails(console, signers, change):
    change(signers)
    found = only(console, "image signers")
    assert found["Result"] == "failed"
    assert str(signers) in found["What"]


# -- the cache ----------------------------------------------------------------


@pytest.mark.usefixtures("roomy")
def test_how_full_the_cache_is_is_told(console, images, kept):
    (file,) = kept.iterdir()
    size = file.stat().st_size
    found = only(console, "image cache")
    assert found["Result"] == "ok"
    assert found["What"] == f"images take {size} of {CACHE_SIZE} bytes"
    assert only(console, "image files")["What"] == "images: 1; no other files"


@pytest.mark.usefixtures("roomy", "kept")
def test_a_cache_that_has_more_than_it_may_is_a_warning(console):
    text = console.config_file.read_text()
    console.config_file.write_text(text.replace(str(CACHE_SIZE), "1"))
    found = only(console, "image cache")
    assert found["Result"] == "warning"
    assert "more than the limit" in found["What"]
    assert "os-acc bitstream prune --size 1" in found["Hint"]


def test_an_image_that_is_allowed_and_would_not_fit_is_a_warning(console, kept, roomy):
    (file,) = kept.iterdir()
    size = file.stat().st_size
    # In addition to the space that the cache leaves free at any time.
    roomy((64 << 20) + 4096)
    found = only(console, "image cache")
    assert found["Result"] == "warning"
    assert f"room for {size + 4096} in total" in found["What"]
    assert f"max_image_size, {LARGEST}," in found["What"]
    assert "free space" in found["Hint"]


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("mode", [0o770, 0o757])
def test_a_cache_that_others_may_write_is_a_warning(console, kept, mode):
    kept.chmod(mode)
    first, second = console.checks()["image cache"]
    assert first["Result"] == "warning"
    assert first["Hint"] == f"chmod go-w {kept}"
    assert second["Result"] == "ok"


@pytest.mark.usefixtures("roomy")
def test_a_cache_of_another_user_fails(console, kept, monkeypatch):
    monkeypatch.setattr(environment, "owner_of", lambda _path: (64055, 64055))
    monkeypatch.setattr(os, "geteuid", lambda: 64055)
    found = console.checks()["image cache"][0]
    assert found["Result"] == "failed"
    assert f"{kept} does not belong to 64055" in found["What"]
    assert found["Hint"] == f"chown -R 64055 {kept}"


@pytest.mark.usefixtures("roomy")
def test_a_cache_that_cannot_be_written_fails(console, kept, monkeypatch):
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, *a, **b: path != str(kept) and access(path, *a, **b)
    )
    found = console.checks()["image cache"][0]
    assert found["Result"] == "failed"
    assert found["Hint"] == f"chmod u+rwx {kept}"


def test_a_cache_that_is_a_link_fails_as_the_helper_follows_none(console, tmp_path):
    cache = Path(console.bench.state_path, "bitstreams")
    cache.symlink_to(tmp_path, target_is_directory=True)
    found = only(console, "image cache")
    assert found["Result"] == "failed"
    assert "does not follow links" in found["What"]


def test_what_does_not_belong_there_is_named_and_left(console, kept):
    (kept / "notes.txt").touch()
    (kept / "old").mkdir()
    (kept / ".dead").write_bytes(b"half an image")
    before = set(os.listdir(kept))
    abandoned, strange = console.checks()["image files"]
    assert {abandoned["Result"], strange["Result"]} == {"warning"}
    assert f"{kept}/.dead" in abandoned["What"]
    assert "os-acc bitstream prune" in abandoned["Hint"]
    assert f"{kept}/notes.txt, {kept}/old" in strange["What"]
    assert set(os.listdir(kept)) == before


def test_a_download_that_is_under_way_belongs_there(console, images, kept):
    image = images.put(3, image_directory.gbs(REGION_ID, FUNCTION_ID, bytes(1 << 22)))
    seen: list[dict[str, str]] = []

    def look(_done: int, _of: int | None) -> None:
        seen.append(only(console, "image files"))

    with images.library().fetched(image, time.monotonic() + 60, look):
        pass
    assert {each["What"] for each in seen} == {"images: 1; no other files"}
