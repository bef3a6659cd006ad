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

"""Can the privileged helper be started?"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from os_acc import exception, helper, privsep
from os_acc.cmd.checks.finding import Finding, failed, ok
from os_acc.cmd.checks.scene import Scene


def base(scene: Scene) -> Iterator[Finding]:
    """Does the context that writes start?"""
    yield _start(scene, privsep.base)


def inspect(scene: Scene) -> Iterator[Finding]:
    """Does the context that looks who holds a device start?"""
    yield _start(scene, privsep.inspect)


def image(scene: Scene) -> Iterator[Finding]:
    """Does the context that programs FPGAs start?"""
    yield _start(scene, privsep.image)


def _start(scene: Scene, context: privsep.Context) -> Finding:
    settings = scene.settings
    command = shlex.join(context.helper_command("SOCKET"))
    deadline = time.monotonic() + settings.initialize_timeout
    try:
        helper.Helper(settings.write_timeout).start(deadline, [context])
    except exception.HelperUnavailable as error:
        return failed(
            f"{error.message}; the command is: {command}",
            f"allow that command (sudoers or rootwrap), or set [{context.cfg_section}] "
            "helper_command",
        )
    return ok(f"starts with: {command}")
