# SPDX-License-Identifier: Apache-2.0

"""The behaviour scenarios pass on the real kernel, as an ordinary user with sudo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios import ALL  # noqa: E402
from tests.run_figures import counts  # noqa: E402

from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

counted = counts("behaviour scenarios on the real kernel")
#: The number of scenarios with a second service.
SPARES = 5


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    process = OrdinaryProcess(
        ordinary_user, RootSide(the_machine, vm_user), ALL, spares=SPARES
    )
    yield process
    process.close()


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("scenario", ALL, ids=lambda each: each.__name__)
def test_on_the_real_kernel(process: OrdinaryProcess, scenario: Job) -> None:
    process.run(scenario)
