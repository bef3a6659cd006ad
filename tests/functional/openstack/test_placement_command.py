# SPDX-License-Identifier: Apache-2.0

"""``os-acc provider sync``, ``os_acc.sync_placement()``, and their access rights."""

from __future__ import annotations

import io
import json
import os
import pathlib

import pytest
from oslo_config import cfg

import os_acc
from os_acc import exception, inspection, service
from os_acc.cmd.main import OsAcc
from os_acc.store.leases import Store
from tests.expected_errors import has
from tests.functional.openstack.placement_site import GPU, GPU_A, NAMED, NIC, Site


def run(
    site: Site, *arguments: str, state_path: str = "", **options: object
) -> tuple[int, str, str]:
    """Run ``os-acc`` with this host's configuration; return status, out, err."""
    file = site.file(**options)
    state_path = state_path or site.state_path
    named = "".join(f"device_spec = {each}\n" for each in NAMED)
    file.write_text(
        f"[os_acc]\nstate_path = {state_path}\nnode_name = {site.name}\n{named}"
        + file.read_text()
    )
    out, err = io.StringIO(), io.StringIO()
    app = OsAcc(root=site.root, config=cfg.ConfigOpts(), stdout=out, stderr=err)
    status = app.run(["--config-file", str(file), *arguments])
    return status, out.getvalue(), err.getvalue()


def changes(out: str) -> list[str]:
    return [each["Change"] for each in json.loads(out)]


def test_the_command_does_what_it_has_shown_before(site: Site) -> None:
    site.manager.discover()
    before = site.placement.tree(site.node)
    status, shown, _err = run(site, "provider", "sync", "--dry-run", "-f", "json")
    assert status == 0
    assert site.placement.tree(site.node) == before
    status, done, _err = run(site, "provider", "sync", "-f", "json")
    assert status == 0
    assert changes(done) == changes(shown) != []
    assert site.units(site.provider(GPU_A).uuid) == {GPU: (1, 0)}
    assert changes(run(site, "provider", "sync", "-f", "json")[1]) == []
    assert site.published().writes == 0


def test_the_command_tells_what_was_refused_and_does_the_rest(site: Site) -> None:
    gpu = site.provider(GPU_A)
    site.placement.make(gpu.name)
    for arguments in (["--dry-run"], []):
        status, out, err = run(site, "provider", "sync", *arguments, "-f", "json")
        assert status == 1
        assert f"os-acc: refused: create {gpu.name}: " in err
        assert len(changes(out)) > 10
    assert not site.placement.has(f"/resource_providers/{gpu.uuid}")
    assert site.placement.has(f"/resource_providers/{site.provider(NIC).uuid}")


def test_the_command_puts_on_record_whose_providers_are_ours(
    site: Site, tmp_path: pathlib.Path
) -> None:
    offered = {each.uuid for each in site.manager.providers()}
    gpu = site.provider(GPU_A).uuid
    site.published()
    site.plug(1, GPU_A)
    elsewhere = str(tmp_path / "elsewhere")
    os.mkdir(elsewhere, 0o750)
    status, _out, err = run(site, "provider", "sync", state_path=elsewhere)
    assert status == 0, err
    # A guest has the GPU, and no record exists: the provider's name identifies it.
    found = Store.open(elsewhere, inspection.STORE_SECONDS)
    assert found.providers().keys() == offered
    assert found.recorded_state().provider_origins.keys() >= offered - {gpu}


def test_a_service_publishes_by_a_public_function(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "nodes", service.Nodes(site.manager))
    first, second = os_acc.sync_placement(), os_acc.sync_placement()
    assert first["done"]
    assert second == {"done": [], "refused": [], "reads": 1, "writes": 0}


def test_a_password_that_is_wrong_is_told(site: Site) -> None:
    with pytest.raises(exception.InvalidConfiguration, match="os_acc_placement"):
        site.sync(site.new_publisher(password="wrong"))


def test_a_user_without_the_role_is_told_which_it_takes(site: Site) -> None:
    with pytest.raises(
        exception.ServiceRefused,
        check=has(service=exception.ServiceType.PLACEMENT),
        match="role service",
    ) as caught:
        site.sync(site.new_publisher(username="os_acc"))
    assert not caught.value.retryable
