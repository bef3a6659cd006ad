# SPDX-License-Identifier: Apache-2.0

"""Fixtures for a host with accelerator requests."""

import pytest
import yaml

from os_acc.attach import requests
from tests.functional.host.requests.request_states import FPGAS, GPUS, NICS


@pytest.fixture
def book(bench, tmp_path):
    """Return the requests of this host, with a catalogue of six profiles."""
    profiles = [
        {"name": "one", "groups": [{f"resources:{GPUS}": "1"}]},
        {
            "name": "two",
            "groups": [
                {f"resources:{GPUS}": "1"},
                {f"resources:{FPGAS}": "1", "accel:attach_target": "none"},
            ],
        },
        {
            "name": "reserved",
            "groups": [{f"resources:{FPGAS}": "1", "accel:attach_target": "none"}],
        },
        {
            "name": "near",
            "groups": [{f"resources:{GPUS}": "1", "accel:numa_policy": "required"}],
        },
        {
            "name": "two-near",
            "groups": [{f"resources:{NICS}": "2", "accel:numa_policy": "required"}],
        },
        {"name": "many", "groups": [{f"resources:{GPUS}": "4"} for _ in range(3)]},
    ]
    place = tmp_path / "profiles.yaml"
    place.write_text(yaml.safe_dump(profiles, sort_keys=False))
    bench.groups["os_acc_profiles"] = {"catalogue": str(place)}

    class Book:
        def __getattr__(self, name):
            manager = bench.manager
            return getattr(requests.Requests(manager, manager.profiles.source), name)

    return Book()


@pytest.fixture
def one(book):
    """Return a request for a GPU."""
    (made,) = book.create("one")
    return made
