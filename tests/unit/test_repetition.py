"""Symptoms of ideas that exist several times: their counts may only fall."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("hyrt", "devices", "perfmodel", "hls")
ROW_FORMS = (
    "AggregatedFeatures",
    "AggregatedRows",
    "CachedRows",
    "ColumnShardedFeatures",
    "DenseFeatures",
    "HeteroInPlaceInput",
    "HeteroInput",
    "HeteroRows",
    "HeteroSources",
    "InPlaceFeatures",
    "MultipliedFeatures",
    "PrefetchedRowSource",
    "QuantizedFeatures",
    "QuantizedRowSource",
    "QuantizedRows",
    "SparseFeatures",
    "SparseRows",
    "SparseSource",
)
TABLE = "hyrt/config/compatibility.py"


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the product."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def nodes() -> Iterator[ast.AST]:
    for tree in trees().values():
        yield from ast.walk(tree)


def count_tests_of_row_forms() -> int:
    """Count the row classes in calls of `isinstance`."""
    calls = (
        node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    )
    return sum(
        isinstance(part, ast.Name) and part.id in ROW_FORMS
        for call in calls
        for part in ast.walk(call.args[1])
    )


def count_tests_of_vertex_types() -> int:
    """Count comparisons of `.types` with None."""
    return sum(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "types"
        and ast.unparse(node.comparators[0]) == "None"
        for node in nodes()
    )


def count_tests_of_full_graphs() -> int:
    """Count reads of `is_full_graph`."""
    return sum(isinstance(node, ast.Attribute) and node.attr == "is_full_graph" for node in nodes())


def count_scattered_refusals() -> int:
    """Count raised messages about combinations that the compatibility table does not raise."""
    words = (
        "does not support",
        "do not support",
        "cannot be combined",
        "cannot be used with",
        "does not work with",
    )
    return sum(
        any(word in ast.unparse(node) for word in words)
        for path, tree in trees().items()
        if path != TABLE
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    )


@pytest.mark.parametrize(
    ("count", "ceiling"),
    [
        (count_tests_of_row_forms, 158),
        (count_tests_of_vertex_types, 40),
        (count_tests_of_full_graphs, 53),
        (count_scattered_refusals, 24),
    ],
)
def test_a_symptom_only_falls(count: Callable[[], int], ceiling: int) -> None:
    assert count() <= ceiling, (
        "declare a feature in hyrt/config/compatibility.py, or call a method of the rows, not another test"
    )
