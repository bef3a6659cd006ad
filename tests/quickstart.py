# SPDX-License-Identifier: Apache-2.0

"""The console blocks of the quick start in the manual, for the tests that follow it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "doc/source/install/quickstart.rst"
#: The first words of the names of the blocks: a simulated host, and a real one.
SIMULATED, REAL = "quickstart-", "real-host-"
#: The block of each that installs the package; its tests use their environment's own.
INSTALL = "install"
#: A device of the real host, which its reader replaces.
ADDRESS = "0000:65:00.0"

_STEP = re.compile(
    r"^\.\. code-block:: console\n   :name: (?P<name>\S+)\n\n"
    r"(?P<lines>(?:   .+\n)+)"
    r"(?:\n\.\. literalinclude:: (?P<output>\S+)\n)?",
    re.MULTILINE,
)
_PROMPT = re.compile(r"(?P<prompt>[$#>]|\(qemu\)) (?P<text>.*)")


@dataclass(slots=True)
class Command:
    """A command for a shell, and the words that are typed into it while it runs."""

    text: str
    typed: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A block of commands on the page; ``output``: the file that the page shows."""

    name: str
    output: Path | None
    commands: list[Command] = field(default_factory=list)


def steps(kind: str) -> Iterator[Step]:
    """Yield the blocks of the page whose names begin with ``kind``, in order."""
    for match in _STEP.finditer(PAGE.read_text(encoding="utf-8")):
        if match["name"].startswith(kind):
            output = match["output"] and (PAGE.parent / match["output"]).resolve()
            step = Step(match["name"].removeprefix(kind), output or None)
            for line in match["lines"].splitlines():
                _read(line.removeprefix("   "), step.commands)
            yield step


def _read(line: str, commands: list[Command]) -> None:
    """Add a line to the commands of its block.

    :raises ValueError: the line is no command, and continues none.
    """
    found = _PROMPT.fullmatch(line)
    if found is None:
        if not commands or not commands[-1].text.endswith("\\"):
            raise ValueError(f"no command: {line}")
        commands[-1].text += f"\n{line}"
    elif found["prompt"] in "$#":
        commands.append(Command(found["text"]))
    elif found["prompt"] == ">":
        commands[-1].text += f"\n{found['text']}"
    else:
        commands[-1].typed += f"{found['text']}\n"
