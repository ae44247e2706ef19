"""Values from YAML, with errors that say where and what to do.

pydantic checks them against the annotations of a dataclass; its errors are told in the words of a file. Every
function raises ValueError for what is not as it says, with the value's place (`where`) and what to give
instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hyrt_perfmodel.nearest_name import nearest_name

T = TypeVar("T")

_EXTRA = "unexpected_keyword_argument"
# What to give, by what pydantic finds wrong.
_GIVE = {
    "a number": ("float_type", "float_parsing"),
    "a finite number": ("finite_number",),
    "a whole number": ("int_type", "int_parsing", "int_parsing_size", "int_from_float"),
    "true or false": ("bool_type",),
    "a name": ("string_type",),
    "a list": ("tuple_type", "frozen_set_type"),
}


# How many values aliases may stand for: a few lines can stand for more than any memory holds.
_MOST_REPEATED = 100_000

# What a text can end inside of, by a part of the parser's words for it.
_UNENDED = {"sequence": "a list", "mapping": "a mapping", "scalar": "a quoted string"}


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
# What `StrictYaml` takes for a number, by its tag.
_NUMBERS = {
    _INT: re.compile(r"[-+]?[0-9]+(_[0-9]+)*$"),
    _FLOAT: re.compile(
        r"[-+]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
        r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
}


class StrictYaml(yaml.SafeLoader):
    """YAML as everyone who writes it means it.

    Two equal keys are an error: the last one would win, and so hide what was meant by the first. Numbers are
    decimal: to YAML 1.1, 010 is 8, 1:30 is 90, and 1e-3 a text. Dates are texts. Aliases (`*a`) may stand for
    100,000 values in all, and for none that they are in.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag not in (_INT, _FLOAT, _DATE)]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def get_single_node(self) -> Any:
        """The document as nodes: no key is there twice in one, and none stands for too much."""
        node = super().get_single_node()
        if node is not None:
            _check_nodes(node)
        return node

    def _decimal(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)).replace("_", ""))


def _check_nodes(document: yaml.Node) -> None:
    """Refuse equal keys, and aliases that stand for too many values or for what they are in.

    What an alias stands for is one node, found once. Who merges (`<<`), prints or checks it meets it at each
    of its places. Keys are compared before that: merging puts those of other nodes beside a node's own.
    """
    # The values that a node stands for; None while those in it are counted.
    stands_for: dict[int, int | None] = {}

    def count(node: yaml.Node) -> int:
        if id(node) in stands_for:
            known = stands_for[id(node)]
            if known is None:
                problem = "a value contains itself through an anchor (&a, *a): write the value out"
                raise _refused(problem, node)
            return known
        stands_for[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        size = stands_for[id(node)] = 1 + sum(map(count, parts))
        return size

    size = count(document)
    if size - len(stands_for) > _MOST_REPEATED:
        raise _refused(
            f"aliases (*a) stand for more than {_MOST_REPEATED:,} values: write out what is meant", document
        )


def _check_keys(node: yaml.MappingNode) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in names:
            raise _refused(f"duplicate key {key.value!r}: keep one of them", key)
        names.add(key.value)


def _refused(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class StrictDumper(yaml.SafeDumper):
    """Quotes text that `StrictYaml`, or any other reader of YAML, would take for a number."""


for _tag, _form in _NUMBERS.items():
    StrictYaml.add_implicit_resolver(_tag, _form, list("-+.0123456789"))
    StrictDumper.add_implicit_resolver(_tag, _form, list("-+.0123456789"))
StrictYaml.add_constructor(_INT, StrictYaml._decimal)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: save it as UTF-8") from error
    try:
        content = yaml.load(text, StrictYaml)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {yaml_problem(error)}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        # What is nested too deep, or a number of too many digits.
        raise ValueError(f"{path}: not readable as YAML: {error}") from error
    return mapping(content, str(path))


def yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong with a text, in one line: `line 2, column 1: the text ends inside a list`."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    context = error.context or ""
    problem = error.problem
    if "stream end" in problem or "end of stream" in problem:
        inside = next((what for part, what in _UNENDED.items() if part in context), "a value")
        problem = f"the text ends inside {inside}"
    elif "'\\t'" in problem:
        problem = "a tab: YAML is indented with spaces"
    elif "another document" in problem:
        problem = "a second document begins: remove this line, or write the two as one"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is a mapping with text for keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: expected a mapping (key: value), found {_shown(value)}")
    return value


def only_keys(
    content: Mapping[str, Any], known: Collection[str], required: Collection[str], where: str
) -> None:
    """Demand that every key is known and every required one there."""
    for key in content:
        if key not in known:
            raise ValueError(f"{where}: {_unknown(key, known)}")
    for key in required:
        if key not in content:
            raise ValueError(f"{where}: the key {key!r} is missing")


def made_of(
    kind: type[T], content: Any, where: str, *, required: Collection[str] = (), infinite: bool = False
) -> T:
    """A dataclass from a mapping of its fields; values are read as the fields' annotations say.

    Parameters
    ----------
    kind
        The dataclass.
    content
        The mapping. Fields with a default may be missing.
    where
        The mapping's place, for messages.
    required
        Fields that may not be missing although they have a default.
    infinite
        Whether every number may be infinite, and not only those that their annotation allows it.
    """
    # Only what contains a dataclass can be given settings, which hold for all dataclasses in it.
    reader = TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", allow_inf_nan=infinite))  # type: ignore[valid-type]
    try:
        (found,) = reader.validate_python([mapping(content, where)])
        only_keys(content, content, required, where)
    except ValidationError as error:
        # A key that is not known says more than one that is missing: it may be a slip of the pen.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != _EXTRA)
        raise ValueError(_sentence(kind, first, where)) from error
    return found


def _sentence(kind: type, error: ErrorDetails, where: str) -> str:
    """A problem that pydantic found, with its place: `file: key` at the top, `file: key.key` below."""
    problem, path = error["type"], error["loc"][1:]
    key = path[-1] if path else ""
    if problem in ("missing", _EXTRA):
        known = get_type_hints(_owner(kind, path[:-1]))
        wrong = f"the key {key!r} is missing" if problem == "missing" else _unknown(str(key), known)
        return f"{_place(path[:-1], where)}: {wrong}"
    place, value = _place(path, where), error["input"]
    if problem == "value_error":
        message = str(error["ctx"]["error"])
        return message if message.startswith(place) else f"{place}: {message}"
    if problem == "literal_error":
        return f"{place} is {_shown(value)}: give one of {error['ctx']['expected']}"
    give = next((give for give, problems in _GIVE.items() if problem in problems), None)
    if give is None:
        return f"{place}: expected a mapping (key: value), found {_shown(value)}"
    return f"{place} is {_shown(value)}: give {give}"


def _place(path: Sequence[int | str], where: str) -> str:
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return where + (inner if ": " in where or not inner else f": {inner.removeprefix('.')}")


def _owner(kind: Any, path: Sequence[int | str]) -> Any:
    """The dataclass at a place within another."""
    for part in path:
        kind = _dataclass_in(get_type_hints(kind).get(str(part))) or kind
    return kind


def _dataclass_in(hint: Any) -> Any:
    return hint if is_dataclass(hint) else next(filter(None, map(_dataclass_in, get_args(hint))), None)


def _unknown(key: str, known: Collection[str]) -> str:
    near = nearest_name(key, known)
    hint = f"did you mean {near!r}?" if near else f"the known keys are {', '.join(sorted(known))}"
    return f"unknown key {key!r}: {hint}"


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"  # Which Python may refuse to print.
    text = repr(value)
    return "nothing" if value is None else text if len(text) < 60 else f"{text[:57]}..."
