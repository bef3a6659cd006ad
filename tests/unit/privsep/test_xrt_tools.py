# SPDX-License-Identifier: Apache-2.0

"""The helper finds programs that are safe to run as root."""

import errno
import os
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc.bitstreams.options import XRT_GROUP, XRT_TOOLS
from os_acc.plugins.xrt import XrtPlugin
from os_acc.privsep import privileged_conf, xrt
from os_acc.privsep.outcome import CallRefused
from os_acc.testing.test_host import config_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(xrt, "tools_directory", lambda: str(tmp_path))
    return tmp_path


def put(place: Path, name: str, mode: int = 0o755) -> str:
    tool = place / name
    tool.write_text("#!/bin/sh\necho told; exit 3\n")
    tool.chmod(mode)
    return str(tool)


def missing(*names: str) -> tuple[int, str]:
    with pytest.raises(CallRefused) as error:
        xrt.find_tool(*names)
    return error.value.result.errno, error.value.result.observed


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> cfg.ConfigOpts:
    """Return an empty configuration, in the place of the helper's."""
    config = config_of()
    monkeypatch.setattr(privileged_conf.cfg, "CONF", config)
    return config


def test_the_helper_s_own_configuration_says_where_they_are(configured):
    assert xrt.tools_directory() == "/opt/xilinx/xrt/bin"
    configured.set_override("tools", "/usr/local/xrt/bin", group="os_acc_xrt")
    assert xrt.tools_directory() == "/usr/local/xrt/bin"


@pytest.mark.parametrize("path", ["", "bin", "./bin", "$state_path"])
def test_a_place_that_is_none_is_not_looked_at(configured, path):
    configured.register_opt(XRT_TOOLS, group=XRT_GROUP)
    configured.set_override("tools", path, group=XRT_GROUP)
    with pytest.raises(CallRefused):
        xrt.tools_directory()


def test_the_service_and_the_helper_have_one_option():
    assert XrtPlugin.options == (XRT_TOOLS,)


def test_a_program_is_found_by_the_first_name_that_is_there(place):
    older = put(place, "older")
    assert xrt.find_tool("newer", "older") == older
    newer = put(place, "newer")
    assert xrt.find_tool("newer", "older") == newer


def test_what_is_not_there_is_told_by_its_last_name(place):
    assert missing("newer", "older") == (errno.ENOENT, str(place / "older"))


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_what_others_may_write_is_not_run(place, mode):
    tool = put(place, "tool", mode)
    assert missing("tool") == (errno.EPERM, tool)


def test_where_others_may_write_nothing_is_run(place):
    put(place, "tool")
    place.chmod(0o775)
    assert missing("tool") == (errno.EPERM, str(place))


def test_what_is_no_program_is_not_run(place):
    tool = put(place, "tool", 0o644)
    assert missing("tool") == (errno.EACCES, tool)
    (place / "folder").mkdir(mode=0o755)
    assert missing("folder") == (errno.EACCES, str(place / "folder"))


def test_what_another_user_owns_is_not_run(place, monkeypatch):
    put(place, "tool")
    if os.geteuid() == 0:
        os.chown(place, 65534, -1)
    else:
        monkeypatch.setattr(xrt.os, "geteuid", lambda: os.getuid() + 1)
    assert missing("tool") == (errno.EPERM, str(place))
