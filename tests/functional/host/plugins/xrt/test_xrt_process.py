# SPDX-License-Identifier: Apache-2.0

"""XRT's tools are run by a helper in a separate process, as in service."""

import signal

import pytest

from tests.functional.host.plugins.xrt.xrt_host import ADDER, USER


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def reaping(request):
    """Let a service reap its children, or have the kernel do it."""
    before = signal.signal(signal.SIGCHLD, request.param)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("reaping")
def test_the_helper_finds_file_and_tools_by_its_own_configuration(make_cards):
    cards = make_cards(separate_helper=True)
    cards.upload()
    cards.plug(1, USER, function_id=ADDER)
    assert cards.hardware() == ADDER
    assert cards.ran() == ["xbmgmt works", "xbutil works", "xocl taken over"]
    for run in cards.runs()[:2]:
        assert int(run["capabilities"], 16) == 0
        # The tool inherits neither the helper's channel nor its files.
        assert len(run["files"]) == 5, run["files"]
