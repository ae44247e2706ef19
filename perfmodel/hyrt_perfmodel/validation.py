"""Validation of numbers in dataclass fields, and a YAML loader that reports the location of errors."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import AllowInfNan, BeforeValidator, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from hyrt_perfmodel.suggestions import nearest_name

Kind = TypeVar("Kind")


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "true and false are not numbers")
    return value


Number = Annotated[float, BeforeValidator(_reject_bool)]
"""Number from a file. `true` and `false`, which Python treats as 1 and 0, are rejected."""

Positive = Annotated[Number, "a number above 0"]
"""Number above 0, which may be infinite except in a file."""

Unbounded = Annotated[float, AllowInfNan(True), BeforeValidator(_reject_bool), "a number above 0"]
"""Number above 0, which is infinite if there is no limit."""

NonNegative = Annotated[Number, "a number of at least 0"]
WholeNumber = Annotated[int, BeforeValidator(_reject_bool)]
Count = Annotated[WholeNumber, "an integer of at least 1"]
Index = Annotated[WholeNumber, "an integer of at least 0"]
StrictBool = Annotated[bool, Strict()]


def check_numbers(owner: str, value: Any) -> None:
    """Raise ValueError if a field of a dataclass instance violates its annotation."""
    for name, rule, may_be_none in _rules(type(value)):  # type: ignore[arg-type]
        number = getattr(value, name)
        if not (_is_number(number, rule) or (number is None and may_be_none)):
            raise ValueError(f"{owner}: {name} must be {rule}, got {number!r}")


def check_kind(owner: str, value: Any, kind: type[Kind], remedy: str) -> Kind:
    """Return a value if it has a class; otherwise raise ValueError with its type and the remedy."""
    if not isinstance(value, kind):
        raise ValueError(f"{owner} is of type {type(value).__name__}: {remedy}")
    return value


def check_size(owner: str, value: Any) -> None:
    if not _is_number(value, "a number of at least 0"):
        raise ValueError(f"{owner} must be a number of at least 0, got {value!r:.60}")


def check_sizes(owner: str, values: Any, count: int | None = None, reason: str = "") -> None:
    """Check that a value is a tuple or list of `count` numbers of at least 0. `reason` explains `count`."""
    fits = isinstance(values, tuple | list) and count in (None, len(values))
    if not fits or not all(_is_number(value, "a number of at least 0") for value in values):
        many = "numbers" if count is None else f"{count} number{'s' * (count != 1)}"
        because = f" ({reason})" if reason else ""
        raise ValueError(f"{owner} must be {many} of at least 0{because}, got {values!r:.60}")


@cache
def _rules(kind: type) -> list[tuple[str, str, bool]]:
    """Return (name, rule, whether None is allowed) of each field of a dataclass that has a rule."""
    rules_by_field = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = (hint, *get_args(hint))
        texts = [
            rule for part in parts for rule in getattr(part, "__metadata__", ()) if isinstance(rule, str)
        ]
        rules_by_field += [(name, rule, type(None) in parts) for rule in texts]
    return rules_by_field


def _is_number(value: object, rule: str) -> bool:
    kinds = int if "integer" in rule else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or math.isnan(value):
        return False
    return value > 0 or (value == 0 and rule.endswith("at least 0"))


T = TypeVar("T")

_EXTRA = "unexpected_keyword_argument"
# pydantic's error types, keyed by the description of the expected value.
_EXPECTED = {
    "a number": ("float_type", "float_parsing"),
    "a finite number": ("finite_number",),
    "an integer": ("int_type", "int_parsing", "int_parsing_size", "int_from_float"),
    "true or false": ("bool_type",),
    "a string": ("string_type",),
    "a list": ("tuple_type", "frozen_set_type"),
}


# Maximum total number of values to which aliases may expand: a few lines could otherwise exceed any memory.
_MAX_ALIASED_VALUES = 100_000

# Constructs that may be unterminated, by a word in the context of the parser's message.
_UNTERMINATED = {"sequence": "a list", "mapping": "a mapping", "scalar": "a quoted string"}


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
# Number formats of `StrictYaml`, by tag.
_NUMBERS = {
    _INT: re.compile(r"[-+]?[0-9]+(_[0-9]+)*$"),
    _FLOAT: re.compile(
        r"[-+]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
        r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
}


class StrictYaml(yaml.SafeLoader):
    """YAML loader that avoids the surprises of YAML 1.1.

    Duplicate keys are an error, because the last one would silently replace the first. Numbers are decimal,
    whereas YAML 1.1 reads 010 as 8, 1:30 as 90, and 1e-3 as text. Dates are text. Aliases (`*a`) may expand
    to 100,000 values in total, and must not refer to a node that contains the alias.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in forms if tag not in (_INT, _FLOAT, _DATE)]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def get_single_node(self) -> Any:
        """Return the document's root node after checking duplicate keys and alias expansion."""
        node = super().get_single_node()
        if node is not None:
            _check_nodes(node)
        return node

    def _decimal(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)).replace("_", ""))


def _check_nodes(document: yaml.Node) -> None:
    """Raise an error for duplicate keys, recursive aliases, and aliases that expand to too many values.

    An alias and its anchor are the same node object, so merging (`<<`), printing or checking visits the node
    once per alias. Keys are checked before merging, which adds the keys of other nodes.
    """
    # Number of values to which a node expands; None while its children are being counted.
    stands_for: dict[int, int | None] = {}

    def count(node: yaml.Node) -> int:
        if id(node) in stands_for:
            known = stands_for[id(node)]
            if known is None:
                problem = "a value contains itself through an anchor (&a, *a): write the value out in full"
                raise _node_error(problem, node)
            return known
        stands_for[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        size = stands_for[id(node)] = 1 + sum(map(count, parts))
        return size

    size = count(document)
    if size - len(stands_for) > _MAX_ALIASED_VALUES:
        raise _node_error(
            f"aliases (*a) expand to more than {_MAX_ALIASED_VALUES:,} values: write the values out in full",
            document,
        )


def _check_keys(node: yaml.MappingNode) -> None:
    names: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in names:
            raise _node_error(f"duplicate key {key.value!r}: keep only one", key)
        names.add(key.value)


def _node_error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class StrictDumper(yaml.SafeDumper):
    """YAML dumper that quotes text if `StrictYaml` or another YAML reader would parse it as a number."""


for _tag, _form in _NUMBERS.items():
    StrictYaml.add_implicit_resolver(_tag, _form, list("-+.0123456789"))
    StrictDumper.add_implicit_resolver(_tag, _form, list("-+.0123456789"))
StrictYaml.add_constructor(_INT, StrictYaml._decimal)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a YAML file whose root is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    try:
        content = yaml.load(text, StrictYaml)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {yaml_problem(error)}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        # These errors mean that the text is nested too deeply, or that a number has too many digits.
        raise ValueError(f"{path} is not readable as YAML: {error}") from error
    return check_mapping(content, str(path))


def yaml_problem(error: yaml.YAMLError) -> str:
    """Describe a YAML error in one line, such as `line 2, column 1: the text ends inside a list`."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    context = error.context or ""
    problem = error.problem
    if "stream end" in problem or "end of stream" in problem:
        inside = next((label for part, label in _UNTERMINATED.items() if part in context), "a value")
        problem = f"the text ends inside {inside}"
    elif "'\\t'" in problem:
        problem = "tabs are not allowed: indent with spaces"
    elif "another document" in problem:
        problem = "a second document starts here: remove this line, or merge the two documents"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def check_mapping(value: Any, location: str) -> Mapping[str, Any]:
    """Return a value if it is a mapping with text keys; otherwise raise ValueError."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{location}: expected a mapping (key: value), got {_format_value(value)}")
    return value


def check_keys(
    content: Mapping[str, Any], known: Collection[str], required: Collection[str], location: str
) -> None:
    """Raise ValueError if a key is unknown or a required key is missing."""
    for key in content:
        if key not in known:
            raise ValueError(f"{location}: {_describe_unknown_key(key, known)}")
    for key in required:
        if key not in content:
            raise ValueError(f"{location}: the key {key!r} is missing")


def build_dataclass(
    kind: type[T], content: Any, location: str, *, required: Collection[str] = (), infinite: bool = False
) -> T:
    """Create a dataclass from a mapping, converting values as the field annotations require.

    `location` is the name of the mapping in messages. The `required` fields must be present although they
    have a default. With `infinite`, every number may be infinite, not only fields whose annotation allows it.
    """
    # Use a tuple, because pydantic applies a config only to nested dataclasses.
    reader = TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", allow_inf_nan=infinite))  # type: ignore[valid-type]
    try:
        (built,) = reader.validate_python([check_mapping(content, location)])
        check_keys(content, content, required, location)
    except ValidationError as error:
        # Report an unknown key before a missing key, because it may be a misspelling of the missing one.
        first = min(error.errors(include_url=False), key=lambda detail: detail["type"] != _EXTRA)
        raise ValueError(_describe_error(kind, first, location)) from error
    return built


def _describe_error(kind: type, error: ErrorDetails, where: str) -> str:
    """Describe a pydantic error and its location: `file: key`, or in a nested mapping `file: key.key`."""
    problem, path = error["type"], error["loc"][1:]
    key = path[-1] if path else ""
    if problem in ("missing", _EXTRA):
        known = get_type_hints(_dataclass_at(kind, path[:-1]))
        wrong = (
            f"the key {key!r} is missing" if problem == "missing" else _describe_unknown_key(str(key), known)
        )
        return f"{_format_location(path[:-1], where)}: {wrong}"
    location, value = _format_location(path, where), error["input"]
    if problem == "value_error":
        message = str(error["ctx"]["error"])
        return message if message.startswith(location) else f"{location}: {message}"
    if problem == "literal_error":
        return f"{location} must be one of {error['ctx']['expected']}, got {_format_value(value)}"
    expected = next((expected for expected, problems in _EXPECTED.items() if problem in problems), None)
    if expected is None:
        return f"{location}: expected a mapping (key: value), got {_format_value(value)}"
    return f"{location} must be {expected}, got {_format_value(value)}"


def _format_location(path: Sequence[int | str], where: str) -> str:
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return where + (inner if ": " in where or not inner else f": {inner.removeprefix('.')}")


def _dataclass_at(kind: Any, path: Sequence[int | str]) -> Any:
    """Return the class of the dataclass at a path within another dataclass."""
    for part in path:
        kind = _find_dataclass(get_type_hints(kind).get(str(part))) or kind
    return kind


def _find_dataclass(hint: Any) -> Any:
    return hint if is_dataclass(hint) else next(filter(None, map(_find_dataclass, get_args(hint))), None)


def _describe_unknown_key(key: str, known: Collection[str]) -> str:
    near = nearest_name(key, known)
    hint = f"did you mean {near!r}?" if near else f"the known keys are {', '.join(sorted(known))}"
    return f"unknown key {key!r}: {hint}"


def _format_value(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"  # Python may refuse to print the number.
    text = repr(value)
    return "nothing" if value is None else text if len(text) < 60 else f"{text[:57]}..."
