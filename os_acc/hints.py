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

"""How errors show a value that somebody passed, and what they may have meant."""

from __future__ import annotations

import builtins
import difflib
import reprlib
from collections.abc import Iterable
from typing import Final

from os_acc import texts

# Characters of a value that is shown.
_LONGEST: Final = 240
# Characters of what may be a misspelling, and candidates that a person reads.
_LONGEST_WORD: Final = 80
_MOST_WORDS: Final = 24


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        # Each further level shows six times as much: of six, 400,000 characters.
        self.maxlevel = 3

    def repr1(self, x: object, level: int) -> str:
        # reprlib goes by the name of a class, which says nothing of what it is.
        if getattr(builtins, type(x).__name__, None) is type(x):
            return super().repr1(x, level)
        return self.repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        # repr() raises ValueError for integers of more than 4300 digits.
        if x.bit_length() > 256:
            return f"an integer of {x.bit_length()} bits"
        return super().repr_int(x, level)


def shown(value: object) -> str:
    """The value as an error message shows it: short, whatever it is."""
    return texts.shortened(_Shown().repr(value), _LONGEST)


def some(texts: Iterable[str], most: int) -> str:
    """So many of the texts as a person reads, and how many more there are."""
    found = list(texts)
    shown = ", ".join(found[:most])
    more = len(found) - most
    return f"{shown} and {more} more" if more > 0 else shown


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that this one is probably a misspelling of.

    :param word: None is near to what is no text, and to a text that is no word.
    """
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    near = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.65)
    return near[0] if near else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint for a word that is none of the known ones."""
    candidates = sorted(known)
    near = nearest(word, candidates)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"it has to be one of: {some(candidates, _MOST_WORDS)}"
