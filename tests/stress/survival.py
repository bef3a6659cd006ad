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


"""What was survived, as a table for the end of the run."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from tests.stress.killer import Trial, Way
from tests.stress.recorder import Point


@dataclasses.dataclass(slots=True)
class Survival:
    """The counts of each flow."""

    rows: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    points: int = 0
    kills: int = 0
    survived: int = 0

    def note(
        self,
        flow: str,
        points: Mapping[Point, str],
        trials: Sequence[Trial],
        lost: int,
    ) -> None:
        """Add one flow."""
        ways = collections.Counter(trial.way for trial in trials)
        self.points += len(points)
        self.kills += len(trials)
        self.survived += len(trials) - lost
        counts = (len(points), *(ways[way] for way in Way), len(trials) - lost)
        self.rows.append((flow, *map(str, counts)))

    def lines(self) -> Iterator[str]:
        """The table."""
        heads = ("flow", "points", *(way.name.lower() for way in Way), "survived")
        width = max(len(row[0]) for row in self.rows)
        for row in (heads, *self.rows):
            yield "  ".join((row[0].ljust(width), *(c.rjust(8) for c in row[1:])))
        yield f"{self.points} points, {self.kills} kills, {self.survived} survived"
