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


"""A device about which the kernel will not speak counts as used."""

from __future__ import annotations

from collections.abc import Callable

from os_acc.exception import HostStepFailed


def judge(name: str, use: Callable[[], str | None]) -> str | None:
    """How the host uses a device; an error is told as a use of its own.

    One broken device must neither be taken from the host by mistake nor keep
    all others from being judged.
    """
    try:
        return use()
    except HostStepFailed as error:
        return f"{name} cannot be judged: {error.message}"
