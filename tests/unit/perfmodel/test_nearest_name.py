"""Which known name a misspelt one was meant to be."""

from __future__ import annotations

import pytest
from hyrt_perfmodel.suggestions import nearest_name

KINDS = ("graphsage", "gcn", "gin", "gat", "ggcn", "ggnn", "commnet", "deepgcn", "gnn-film")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("gnc", "gcn"),
        ("gni", "gin"),
        ("gta", "gat"),
        ("ggnc", "ggcn"),
        ("graphsaeg", "graphsage"),
        ("x", None),
    ],
)
def test_two_letters_that_were_swapped(word: str, name: str | None) -> None:
    assert {nearest_name(word, order) for order in (KINDS, KINDS[::-1])} == {name}


def test_every_swap_of_neighbouring_letters_in_a_kind_of_model_names_it() -> None:
    for name in KINDS:
        for at in range(1, len(name)):
            word = name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]
            if word not in KINDS:
                assert nearest_name(word, KINDS) == name, word


def test_what_is_nearer_wins_over_the_same_letters() -> None:
    assert nearest_name("silent", ("listen", "silents")) == "silents"
    assert nearest_name("abcd", ("zzzz",)) is None
    assert nearest_name("abcd", ("abxx",), cutoff=0.5) == "abxx"
