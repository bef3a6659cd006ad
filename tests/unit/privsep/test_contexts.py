# SPDX-License-Identifier: Apache-2.0

"""Contexts keep only the capabilities that they need, and start as the user may."""

import importlib
import os
import pkgutil
import re
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_privsep import capabilities, priv_context

from os_acc import conf, privsep
from os_acc.conf import PRIVSEP_GROUPS
from os_acc.privsep import (
    binding,
    fpga,
    holders,
    nvme,
    xrt,
)
from os_acc.privsep.nvme import steps

MANUAL = Path(__file__).parents[3] / "doc/source/admin/threat-model.rst"
SOCKET = "/run/user/privsep.sock"
CONTEXTS = {
    "os_acc.privsep.base": privsep.base,
    "os_acc.privsep.inspect": privsep.inspect,
    "os_acc.privsep.image": privsep.image,
    "os_acc.privsep.nvme.context": nvme.context,
}


@pytest.fixture
def user(monkeypatch):
    def become(uid: int) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: uid)

    return become


@pytest.fixture
def helper_command():
    """Return a function that sets a context's option ``helper_command``."""
    changed = []

    def configure(context, command):
        changed.append(context.cfg_section)
        cfg.CONF.set_override("helper_command", command, group=context.cfg_section)

    yield configure
    for section in changed:
        cfg.CONF.clear_override("helper_command", group=section)


@pytest.mark.parametrize(
    ("context", "kept"),
    [
        (privsep.base, set()),
        (
            privsep.inspect,
            {capabilities.CAP_SYS_PTRACE, capabilities.CAP_DAC_READ_SEARCH},
        ),
        (privsep.image, {capabilities.CAP_DAC_READ_SEARCH}),
        (
            nvme.context,
            {capabilities.CAP_SYS_ADMIN, capabilities.CAP_DAC_READ_SEARCH},
        ),
    ],
    ids=CONTEXTS,
)
def test_a_context_keeps_the_capabilities_that_it_needs(context, kept):
    assert set(context.conf.capabilities) == kept


def test_each_context_has_its_own_group_of_options():
    sections = {context.cfg_section for context in CONTEXTS.values()}
    assert sections == set(PRIVSEP_GROUPS)


@pytest.mark.parametrize(
    ("entry_point", "context"),
    [
        (binding.take, privsep.base),
        (holders.holders, privsep.inspect),
        (fpga.program, privsep.image),
        (fpga.set_ports, privsep.base),
        (xrt.program, privsep.image),
    ],
)
def test_each_entry_point_belongs_to_one_context(entry_point, context):
    assert [each for each in CONTEXTS.values() if each.is_entrypoint(entry_point)] == [
        context
    ]


def entry_points() -> set[str]:
    """Return the names of all functions that a context serves, but for a plugin."""
    found = set()
    for each in pkgutil.walk_packages(privsep.__path__, f"{privsep.__name__}."):
        module = importlib.import_module(each.name)
        for name, function in vars(module).items() if module is not steps else ():
            if any(one.is_entrypoint(function) for one in CONTEXTS.values()):
                found.add(name)
    return found


def test_the_threat_model_lists_each_entry_point_and_no_other():
    (listed,) = re.findall(r"the helper's calls:(.*?)\n +- ", MANUAL.read_text(), re.S)
    names = re.findall(r"``(\w+)``", listed)
    assert sorted(names) == sorted(entry_points())


@pytest.mark.parametrize(("uid", "sudo"), [(1000, ["sudo"]), (0, [])])
@pytest.mark.parametrize("name", CONTEXTS)
def test_an_ordinary_user_goes_through_sudo_and_root_needs_none(user, name, uid, sudo):
    user(uid)
    command = CONTEXTS[name].helper_command(SOCKET)
    program = command[len(sudo)]
    assert (command[: len(sudo)], os.path.basename(program)) == (sudo, "privsep-helper")
    socket = ["--privsep_sock_path", SOCKET]
    assert command[-4:] == ["--privsep_context", name, *socket]


@pytest.mark.parametrize(("uid", "sudo"), [(1000, ["sudo"]), (0, [])])
def test_the_helper_beside_the_running_python_is_taken(
    user, monkeypatch, tmp_path, uid, sudo
):
    """In a virtual environment it is not on PATH."""
    user(uid)
    beside = tmp_path / "privsep-helper"
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    number = len(sudo) + 1
    found = privsep.base.helper_command(SOCKET)[:number]
    assert found == [*sudo, "privsep-helper"]
    beside.touch(mode=0o755)
    assert privsep.base.helper_command(SOCKET)[:number] == [*sudo, str(beside)]


def test_rootwrap_knows_the_helper_by_its_plain_name(user, monkeypatch, tmp_path):
    user(1000)
    rootwrap = ["sudo", "nova-rootwrap", "/etc/nova/rootwrap.conf"]
    monkeypatch.setattr(priv_context, "_HELPER_COMMAND_PREFIX", rootwrap)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    (tmp_path / "privsep-helper").touch(mode=0o755)
    assert privsep.base.helper_command(SOCKET)[:4] == [*rootwrap, "privsep-helper"]


def test_one_option_is_for_all_helpers_and_that_of_one_overrides_it(
    user, helper_command
):
    user(1000)
    cfg.CONF.register_opts(conf.OPTIONS, group="os_acc")
    cfg.CONF.set_override("helper_command", "sudo here", group="os_acc")
    try:
        helper_command(privsep.inspect, "sudo there")
        for context in CONTEXTS.values():
            where = "there" if context is privsep.inspect else "here"
            assert context.helper_command(SOCKET) == [
                *("sudo", where, "--privsep_context", context.pypath),
                *("--privsep_sock_path", SOCKET),
            ]
    finally:
        cfg.CONF.clear_override("helper_command", group="os_acc")


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_operator_may_say_how_it_is_started(user, helper_command, uid):
    user(uid)
    rootwrap = "sudo nova-rootwrap /etc/nova/rootwrap.conf privsep-helper"
    helper_command(privsep.base, rootwrap)
    assert privsep.base.helper_command(SOCKET) == [
        *rootwrap.split(),
        "--privsep_context",
        "os_acc.privsep.base",
        "--privsep_sock_path",
        SOCKET,
    ]
