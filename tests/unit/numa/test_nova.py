# SPDX-License-Identifier: Apache-2.0

"""A model of Nova's claim has the quirks that the exact fit does not have."""

from __future__ import annotations

import pytest

from os_acc.numa.fit.search import fit_to_host
from tests.unit.numa import quirks
from tests.unit.numa.nova_claim import fit_as_nova
from tests.unit.numa.quirks import QUIRKS

every_quirk = pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)


@every_quirk
def test_the_truth_is_another_than_nova_s(quirk: quirks.Quirk) -> None:
    assert quirk.exact != quirk.nova
    found = fit_to_host(quirk.question)
    assert (found.cells if found.fits else None) == quirk.exact


@every_quirk
def test_with_the_quirk_the_answer_is_nova_s(quirk: quirks.Quirk) -> None:
    assert fit_as_nova(quirk.question) == quirk.nova
