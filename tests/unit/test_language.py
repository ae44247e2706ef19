"""Ceilings on private words and docstring openings: each may only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("hyrt", "devices", "perfmodel", "hls", "tools")
# Words that the field does not use in identifiers; docs/concepts.md has the terms to use instead.
PRIVATE_WORDS = frozenset(
    """
    most least fewest own kept told tell says said hear heard asked ask room rooms why what begun turned
    beside again come comes coming given judged meet meets met travel travelling touring dealt evening
    fellow wanted unread back lose narrow narrowed widen recycled leftover unfinished let goes gone typed
    """.split()  # noqa: SIM905
)
MAX_PRIVATE_PER_1000 = 0.3
MAX_WITHOUT_VERB = 9.5
MAX_WHAT = 2
# Openings of a function's docstring that are not a verb.
NO_VERB = re.compile(
    r"^(The|A|An|All|Any|Each|Every|One|Two|Both|It|They|This|That|These|Those|Some|No|None|Nothing|Nobody|What|"
    r"Whether|How|Where|Which|Who|Why|When|Of|In|At|By|For|From|With|Without|As|So|Else|If|Only|Not|Is|Are|Has|Its|"
    r"Their|Like|Another|Such|Many|More|Most|Less|Least|Names?|Numbers?|Bytes|Rows|Edges|Values?|Weights?|Words?|"
    r"Gradients?|Lines?|Parts?|Sizes?|Seconds|Times?|\(|\[|`|\d)"
)


@cache
def trees() -> list[ast.Module]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each function, parameter, class, variable and attribute that is defined in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
            arguments = node.args
            yield from (a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words_of(name: str) -> list[str]:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name))
    return [word.lower() for word in name.strip("_").split("_") if word]


def docstrings() -> Iterator[tuple[ast.AST, str]]:
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield node, text


def test_identifiers_use_the_words_of_the_field() -> None:
    words = Counter(
        word
        for tree in trees()
        for name in defined_names(tree)
        if name not in ("self", "cls")
        for word in words_of(name)
    )
    private = {word: words[word] for word in PRIVATE_WORDS if words[word]}
    share = 1000 * sum(private.values()) / words.total()
    assert share <= MAX_PRIVATE_PER_1000, Counter(private).most_common(10)


def test_docstrings_of_functions_open_with_a_verb() -> None:
    functions = [
        text for node, text in docstrings() if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    without = [text.splitlines()[0] for text in functions if NO_VERB.match(text)]
    assert 100 * len(without) / len(functions) <= MAX_WITHOUT_VERB, without[:10]


def test_docstrings_do_not_begin_with_what() -> None:
    found = [text.splitlines()[0] for _, text in docstrings() if text.startswith("What")]
    assert len(found) <= MAX_WHAT, found[:10]
