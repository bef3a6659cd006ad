# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""The behaviour scenarios on the real kernel, as an ordinary user with sudo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from tests.behaviour import reachable  # noqa: E402
from tests.behaviour.counting import counts  # noqa: E402
from tests.behaviour.host import Places  # noqa: E402
from tests.behaviour.ordinary import OrdinaryProcess  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios import ALL  # noqa: E402

from . import lane  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .hotplug import Hotplug  # noqa: E402
from .machine import Machine  # noqa: E402

passed = counts("the real kernel")


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    places = Places(
        pf=the_machine.pf_node1,
        single=the_machine.edu_node1,
        no_reset=the_machine.edu,
        card=the_machine.card,
        bridge=lane.PORT_NVME_NODE1,
        slot=the_machine.hotplug,
    )
    reachable.open_the_way()
    slot = Hotplug(the_machine.hotplug)
    process = OrdinaryProcess(
        ordinary_user.uid,
        ordinary_user.home,
        places,
        RootSide(vm_user, slot),
        {each.__name__: each for each in ALL},
    )
    yield process
    process.close()
    slot.close()


@pytest.mark.parametrize("name", [each.__name__ for each in ALL])
def test_on_the_real_kernel(
    process: OrdinaryProcess, name: str, passed: list[str]
) -> None:
    process.run(name)
    passed.append(name)
