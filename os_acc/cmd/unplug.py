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

"""``os-acc unplug``: what Nova does after a guest has ended, by hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from os_acc.cmd import arguments, base


class Unplug(base.Showing):
    """Give back all accelerators of an instance."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "uuid", metavar="UUID", type=arguments.uuid, help="of the instance"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Any]]:
        released = self.manager().unplug({"uuid": parsed_args.uuid})
        return ("Consumer", "Released"), (parsed_args.uuid, released)
