# SPDX-License-Identifier: Apache-2.0

"""Consecutive shares select every test, and each number always the same tests."""

import collections
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import shares
from tests.functional.kernel import kernels
from tests.shares import Share

ROOT = Path(__file__).parents[2]
#: The folders of tests with long kinds that are divided into shares.
LANES = ("tests/functional/host", "tests/stress", "tests/functional/kernel")

#: A plugin for a run that only collects; it records the place of each test.
_PLACES = """
import json, sys
import pytest
from tests import shares

class Collected:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        self.places = {
            item.nodeid: shares.place_and_divisor(item) for item in items
        }

collected = Collected()
status = pytest.main(["--collect-only", "-qq", *sys.argv[2:]], plugins=[collected])
with open(sys.argv[1], "w") as file:
    json.dump(collected.places, file)
sys.exit(status)
"""


@pytest.mark.parametrize("divisor", [1, 2, 10])
@pytest.mark.parametrize("first", [0, 7, 1_234, 16**7 + 5])
def test_consecutive_shares_select_each_item_once(first, divisor):
    items = [f"item {number}" for number in range(97)]
    numbers = range(first, first + divisor)
    selected = [each for n in numbers for each in Share(n).select(items, divisor)]
    assert sorted(selected) == sorted(items)


def test_consecutive_shares_are_of_one_size():
    sizes = {len(Share(number).select(range(1_003), 10)) for number in range(10)}
    assert sizes == {100, 101}
    assert sum(Share(number).reduce(5_000, 10) for number in range(10)) == 5_000


def test_a_full_run_selects_everything():
    full, items = Share(), list(range(97))
    assert full.select(items, 10) == items
    assert full.reduce(5_000, 10) == 5_000
    assert all(full.has(place, 10) for place in items)


def test_the_place_of_a_test_follows_from_its_name_alone():
    place = shares.place_of("tests/stress/test_soak.py::test_x[a]")
    assert place % 10**6 == 270381


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Return the place and the divisor of each test of the lanes."""
    file = tmp_path_factory.mktemp("collected") / "tests.json"
    # Rewritten assertions cost half of the time of a collection.
    options = ("-p", "no:cacheprovider", "--assert=plain")
    arguments = [str(file), *options, *LANES]
    # It only collects: the checkout's package will do.
    environment = {k: v for k, v in os.environ.items() if k != "OS_ACC_INSTALLED"}
    subprocess.run(
        [sys.executable, "-c", _PLACES, *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return json.loads(file.read_text())


# Collecting the lanes takes seconds: a run has the tests of one of them.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(lane, marks=pytest.mark.share(len(LANES), place=place))
        for place, lane in enumerate(LANES)
    ],
)
def selected(
    request: pytest.FixtureRequest, places: dict[str, tuple[int, int]]
) -> dict[str, list[int]]:
    """Return each test of a lane, with the shares that select it.

    They are as many as it takes until all tests are selected as before.
    """
    beginning = f"{request.param}/"
    places = {k: v for k, v in places.items() if k.startswith(beginning)}
    numbers = range(math.lcm(*(divisor for _, divisor in places.values())))
    return {
        name: [number for number in numbers if Share(number).has(place, divisor)]
        for name, (place, divisor) in places.items()
    }


def test_every_test_is_selected_in_some_share(selected):
    assert selected
    assert [name for name, numbers in selected.items() if not numbers] == []


def test_every_test_is_selected_equally_often(selected):
    """A test is selected by every n-th number."""
    for name, numbers in selected.items():
        steps = {later - number for number, later in itertools.pairwise(numbers)}
        assert len(steps) <= 1, name


def test_no_share_has_twice_its_part(selected):
    sizes = collections.Counter(
        number for numbers in selected.values() for number in numbers
    )
    assert max(sizes.values()) < 2 * sizes.total() / len(sizes), sizes


@pytest.mark.parametrize("selected", LANES[2:], indirect=True)
@pytest.mark.share(len(LANES), place=2)
def test_consecutive_shares_run_every_test_on_every_kernel(selected):
    for name, numbers in selected.items():
        met = {kernel for number in numbers for kernel in kernels.of(Share(number))}
        assert met == set(kernels.KERNELS), name


def test_a_share_boots_one_kernel_and_a_full_run_all():
    assert [len(kernels.of(Share(number))) for number in range(4)] == [1, 1, 1, 1]
    assert list(kernels.of(Share())) == ["installed", "iommufd", "backports"]


# -- the number of a commit --------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    """Run git, with an author and without the configuration of this machine."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
    )


def number_of(clone: Path) -> int:
    """Return the number of the share that .ci/run would run in a clone."""
    (clone / ".ci").mkdir(exist_ok=True)
    script = shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    done = subprocess.run(
        ["bash", script, "--share"], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with four commits on main: three, and a merge of two."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in range(3):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
    git(folder, "switch", "-q", "-c", "work")
    for number in range(2):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"work {number}")
    git(folder, "switch", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "work")
    return folder


def test_the_next_commit_has_the_next_share(repository, tmp_path):
    assert number_of(repository) == 4
    git(repository, "commit", "-q", "--allow-empty", "-m", "the next")
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "-q", repository.as_uri(), str(fresh))
    assert number_of(repository) == number_of(fresh) == 5


def test_a_shallow_clone_has_the_same_share_each_time(repository, tmp_path):
    numbers = []
    for name in ("one", "other"):
        clone = tmp_path / name
        git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), str(clone))
        numbers.append(number_of(clone))
    assert numbers[0] == numbers[1]
    git(repository, "commit", "-q", "--allow-empty", "-m", "the next")
    clone = tmp_path / "later"
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), str(clone))
    assert number_of(clone) != numbers[0]


# -- a run of pytest ---------------------------------------------------------------

_TESTS = """
import pytest

@pytest.mark.share(2)
@pytest.mark.parametrize("number", range(20))
def test_shared(number):
    pass

@pytest.mark.parametrize("part", [
    pytest.param(place, marks=pytest.mark.share(10, place)) for place in range(10)
])
def test_placed(part):
    pass

def test_always():
    pass
"""


def run(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """Return the names of the tests that passed, and the output."""
    (folder / "test_file.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.shares"]
    command += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, *arguments, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if "PASSED" in line]
    words = [word for line in lines for word in line.split() if "::" in word]
    return {word.split("::")[1] for word in words}, done.stdout


@pytest.mark.share(4)
def test_a_run_selects_its_share_in_any_order(tmp_path):
    everything, _ = run(tmp_path)
    first, printed = run(tmp_path, "--share=3")
    spread, printed_by_workers = run(tmp_path, "--share=3", "-n", "2")
    second, _ = run(tmp_path, "--share=4")

    assert len(everything) == 31
    assert first == spread
    assert f"share 3: {len(first)} of 31 tests" in printed
    assert f"share 3: {len(first)} of 31 tests" in printed_by_workers
    shared = {name for name in everything if name.startswith("test_shared")}
    assert first & shared | second & shared == shared
    assert first & second == {"test_always"}
    assert "test_placed[3]" in first
    assert "test_placed[4]" in second


@pytest.mark.share(4)
def test_a_lane_with_a_divisor_runs_a_share_of_every_test(tmp_path):
    met = [run(tmp_path, "--divisor=3", f"--share={number}")[0] for number in range(3)]
    selected = [name for names in met for name in names if "placed" not in name]
    assert len(selected) == len(set(selected)) == 21


def test_the_table_of_lanes_has_those_that_run_a_share():
    script = (ROOT / ".ci/run").read_text()
    lanes = re.findall(r"^lane_\w+\(\) \{ prepared (\w+)(.*) \}$", script, re.M)
    assert lanes
    table = dict(
        re.findall(
            r"^``(\w+)`` .* (all|a share|a share, on one)$",
            (ROOT / "CONTRIBUTING.rst").read_text(),
            re.M,
        )
    )
    divided = {name for name, options in lanes if "--share=" in options}
    assert {name for name, part in table.items() if part != "all"} == divided
    assert {name for name, _options in lanes} <= table.keys()


def test_each_kind_of_test_that_the_manual_divides_exists():
    page = (ROOT / "doc/source/contributor/testing.rst").read_text()
    _, _, section = page.partition(".. _shares:")
    table = section.partition("How many shares")[0]
    files = re.findall(r"\(``(test_\w*\*?\.py)``\)", table)
    assert files
    for name in files:
        found = list((ROOT / "tests/stress").glob(name))
        assert found, name
