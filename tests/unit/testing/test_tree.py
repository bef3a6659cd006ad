# SPDX-License-Identifier: Apache-2.0

"""A transaction shows its changes at once, and its end applies them."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.testing.tree import Transaction, Tree

NAMES = st.sampled_from(["a", "b", "c"])
DIRECTORIES = st.sampled_from(["d", "d/e", "f"])
STEPS = st.one_of(
    st.tuples(st.just("put"), DIRECTORIES, NAMES),
    st.tuples(st.just("link"), DIRECTORIES, NAMES),
    st.tuples(st.just("drop"), DIRECTORIES, NAMES),
    st.tuples(st.just("drop directory"), DIRECTORIES, NAMES),
)


def carry_out(tree: Transaction, step: tuple[str, str, str], text: str) -> None:
    kind, directory, name = step
    path = f"{directory}/{name}"
    if kind == "put":
        tree.put(path, text)
    elif kind == "link":
        tree.link(path, f"f/{name}")
    elif kind == "drop":
        tree.drop(path)
    else:
        tree.drop(directory)


def seen(tree: Transaction) -> list[object]:
    found: list[object] = []
    for directory in ("d", "d/e", "f"):
        found.append(tree.list(directory))
        for name in ("a", "b", "c"):
            path = f"{directory}/{name}"
            target = tree.follow(path)
            there = tree.exists(path)
            text = tree.read(path) if there and target is None else None
            found.append((path, there, target, text))
    return found


@settings(max_examples=60, deadline=None)
@given(before=st.lists(STEPS, max_size=6), within=st.lists(STEPS, max_size=10))
def test_what_a_transaction_shows_is_what_it_leaves(before, within):
    with tempfile.TemporaryDirectory() as root:
        tree = Tree(root)
        with tree.transaction() as first:
            for number, step in enumerate(before):
                carry_out(first, step, f"old {number}")
        with tree.transaction() as second:
            for number, step in enumerate(within):
                carry_out(second, step, f"new {number}")
            expected = seen(second)
        with tree.transaction() as third:
            assert seen(third) == expected


def test_what_is_raised_within_undoes_all(tmp_path):
    tree = Tree(str(tmp_path))

    def break_off() -> None:
        with tree.transaction() as transaction:
            transaction.put("d/a", "x")
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    with tree.transaction() as transaction:
        assert not transaction.exists("d/a")


def test_a_missing_file_is_an_error(tmp_path):
    tree = Tree(str(tmp_path))
    with tree.transaction() as transaction:
        transaction.put("d/a", "x")
        transaction.drop("d")
        with pytest.raises(FileNotFoundError):
            transaction.read("d/a")
