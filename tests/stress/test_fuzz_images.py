# SPDX-License-Identifier: Apache-2.0

"""A wrong value of an option about images is reported, or changes nothing.

The options of the Image service are read at the first request for an image; here no
server answers, as nothing listens at the address, which is one of this host.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import glance, library
from os_acc.bitstreams import options as bitstreams
from os_acc.testing.test_host import config_of
from tests.random_values import TEXTS, RandomValues, shown
from tests.stress.fuzzing import SHARES, told

IMAGE = "d5ca2f11-3108-4426-a11c-a959987565df"
#: Random values of each option, beyond the texts that are known for trouble.
VALUES = 10
_NOBODY = "http://127.0.0.1:9"
_RIGHT = {
    bitstreams.GROUP.name: {"source": "glance"},
    glance.GROUP.name: {
        "auth_type": "password",
        "auth_url": _NOBODY,
        "endpoint_override": _NOBODY,
        "username": "os_acc",
        "password": "secret",
        "project_name": "service",
        "user_domain_id": "default",
        "project_domain_id": "default",
    },
}
_TIMES_OUT = 0.3


def names() -> list[tuple[str, str]]:
    """Return group and name of each option of images."""
    return [
        (group, option.name.replace("-", "_"))
        for group, options in (
            (bitstreams.GROUP.name, bitstreams.OPTIONS),
            (glance.GROUP.name, glance.SERVICE.list_opts()),
        )
        for option in options
    ]


def ask(place: str, config: cfg.ConfigOpts) -> None:
    """Use the options: open a library, and ask for one image."""
    images = library.build(config, f"{place}/state")
    images.about(IMAGE, time.monotonic() + _TIMES_OUT)


def by_file(place: str, group: str, name: str, value: object) -> cfg.ConfigOpts:
    """Set an option in a file, as an operator does."""
    told = {each: dict(values) for each, values in _RIGHT.items()}
    told[group][name] = value if isinstance(value, str) else shown(value)
    text = "".join(
        f"[{each}]\n" + "".join(f"{key} = {what}\n" for key, what in values.items())
        for each, values in told.items()
    )
    path = Path(place, "os-acc.conf")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return config_of(path)


def _leaves_home(name: str, value: object) -> bool:
    """Return whether a value could lead to another server."""
    return name in ("auth_url", "endpoint_override") and "://" in shown(value)


@pytest.mark.parametrize(("group", "name"), names())
def test_a_wrong_option_of_images_is_told_so(place, seed, share, fuzzed, group, name):
    every: list[object] = list(TEXTS)
    every += [
        RandomValues(f"{seed} {group} {name} {number}").value()
        for number in range(VALUES)
    ]
    values = share.select(list(enumerate(every)), SHARES)
    before = sorted(os.listdir("/"))
    for number, value in values:
        if _leaves_home(name, value):
            continue
        with told(seed, number, f"[{group}] {name} = {shown(value)}"):
            error = _error_of(place, group, name, value)
            assert str(error).encode()
    assert sorted(os.listdir("/")) == before
    assert not os.path.exists(f"{place}/state/bitstreams")
    fuzzed("values of options", len(values))


def _error_of(place: str, group: str, name: str, value: object) -> Exception:
    try:
        config = by_file(place, group, name, value)
    except (cfg.Error, ValueError) as error:
        # oslo.config's own error.
        return error
    try:
        ask(place, config)
    except exception.OsAccError as error:
        return error
    raise AssertionError("a server has answered")
