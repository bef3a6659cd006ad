# SPDX-License-Identifier: Apache-2.0

"""The comparison of two trees finds a slower row and an increased count."""

import dataclasses

from benchmarks.compare import compare, failures, unpaired
from benchmarks.rows import Count, Row, Unit


def a_round(median: float, fsyncs: float = 2, unit: Unit = Unit.SECONDS, case="scan"):
    counts = (Count("fsyncs", fsyncs),)
    row = Row("discovery", case, 1024, "functions", unit, median, 0.0, 9, counts=counts)
    return {("discovery", case, 1024): row}


def test_a_row_that_is_as_fast_is_no_failure():
    compared = compare([a_round(1.0), a_round(2.0)], [a_round(1.02), a_round(2.0)])
    assert [each.ratio for each in compared] == [1.01]
    assert failures(compared, 1.05) == []


def test_a_slower_row_is_found_by_the_ratios_of_the_rounds():
    before = [a_round(1.0), a_round(5.0), a_round(1.0)]
    after = [a_round(1.2), a_round(5.0), a_round(1.2)]
    (found,) = failures(compare(before, after), 1.05)
    assert found == "discovery, scan, 1,024: 1.20 times"


def test_a_slower_machine_is_slower_for_the_floor_too():
    (before,), (after,) = a_round(1.0).items(), a_round(2.0).items()
    (found,) = compare(
        [{before[0]: dataclasses.replace(before[1], floor=0.5, ratio=2.0)}],
        [{after[0]: dataclasses.replace(after[1], floor=1.0, ratio=2.0)}],
    )
    assert (found.before, found.after, found.ratio) == (1.0, 2.0, 1.0)


def test_a_lower_rate_is_slower():
    before = [a_round(100.0, unit=Unit.PER_SECOND)]
    (compared,) = compare(before, [a_round(50.0, unit=Unit.PER_SECOND)])
    assert compared.ratio == 2.0


def test_a_count_that_has_grown_is_a_failure():
    (found,) = failures(compare([a_round(1.0)], [a_round(1.0, fsyncs=3)]), 1.05)
    assert found == "discovery, scan, 1,024: fsyncs: 2 -> 3"
    assert failures(compare([a_round(1.0)], [a_round(1.0, fsyncs=1)]), 1.05) == []


def test_a_row_of_one_tree_alone_is_not_compared():
    before, after = [a_round(1.0)], [a_round(1.0, case="read")]
    assert compare(before, after) == []
    assert len(unpaired(before, after)) == 2


def test_a_count_of_one_round_counts():
    before = [a_round(1.0), a_round(1.0)]
    after = [a_round(1.0, fsyncs=3), a_round(1.0)]
    assert len(failures(compare(before, after), 1.05)) == 1


def test_a_count_of_one_tree_alone_is_a_failure():
    before, after = [a_round(1.0)], [a_round(1.0)]
    after[0] = {k: dataclasses.replace(v, counts=()) for k, v in after[0].items()}
    (found,) = failures(compare(before, after), 1.05)
    assert found.endswith("fsyncs: counted in one tree alone")
