"""From a nested mapping to the validated settings, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any, get_args

from hyrt_perfmodel.nearest_name import nearest_name
from pydantic import BaseModel, ValidationError

from hyrt.config.by_kind import LENIENT, ByKind
from hyrt.config.settings import OWN_MODEL, Config
from hyrt.errors import ConfigError

# What other programs call some settings.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "batch": "batch_size",
    "bs": "batch_size",
    "fanouts": "fanout",
    "num_neighbors": "fanout",
    "neighbors": "fanout",
    "width": "hidden",
}

# What pydantic says of a value, by its kinds of errors, in our words; with the error's own figures.
_WANTED = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    "finite_number": "give a finite number",
    **dict.fromkeys(("int_from_float", "int_parsing", "int_parsing_size", "int_type"), "give a whole number"),
    **dict.fromkeys(("string_type", "string_unicode"), "give text"),
    "list_type": "give a list, such as [10, 5]",
    "dict_type": "give a mapping, such as {{name: value}}",
    "too_short": "give at least {min_length}",
    "literal_error": "give {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
# Of a value as large as a few lines of YAML can make it, a message shows the beginning.
_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 200
_SHOWN.maxlevel = 2
_SECTION = ("model_type", "model_attributes_type")


def _known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        for marker in field.metadata:
            if isinstance(marker, ByKind):
                for _, section in marker.sections():
                    keys.extend(_known_keys(section, f"{path}."))
        # A section that may be left out is a union with None.
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys.extend(_known_keys(part, f"{path}."))
    return keys


def explained(error: ValidationError, root: type[BaseModel], listing: str) -> str:
    """The first problem, as a sentence that names the key.

    Parameters
    ----------
    error
        What pydantic refused.
    root
        The class of all settings.
    listing
        The command that lists them.
    """
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    kind, given = first["type"], first["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, root, listing)
    if kind == "invalid_key":
        return f"setting {path}: the name of a setting must be text, not {first['loc'][-1]!r}"
    shown = _SHOWN.repr(given)
    inside = [key for key in _known_keys(root) if key.startswith(f"{path}.")] if kind in _SECTION else []
    if inside:
        like = f"{inside[0]}={given if isinstance(given, str) else '...'}"
        return f"setting {path}={shown}: {path} is a section: write the settings in it, such as {like}"
    if kind == "missing":
        return f"setting {path} is missing: give it"
    text = wanted(first)
    return f"setting {path}={shown}: {text}" if path else text


def wanted(problem: Mapping[str, Any]) -> str:
    """What to give in place of a value that pydantic refused; `problem` is one of its error's `errors()`."""
    if problem["type"] in _WANTED:
        return _WANTED[problem["type"]].format(**problem.get("ctx", {}))
    # What hyrt's own validators say is in hyrt's words.
    return str(problem["msg"]).removeprefix("Value error, ")


def _unknown_key(path: str, root: type[BaseModel], listing: str) -> str:
    """Say that a setting is unknown, with the nearest name there is."""
    known = _known_keys(root)
    *sections, last = path.split(".")
    if path in known and sections:
        # One key with a point in it, which only arguments may have.
        nested = "".join(f"{name}: {{" for name in sections) + f"{last}: ..." + "}" * len(sections)
        return f"unknown setting {path!r}: in a settings file, a section holds its settings: write {nested}"
    section, _, leaf = path.rpartition(".")
    inside = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    near = next((key for key in known if key.rpartition(".")[2] == leaf), None)
    if near is None and inside:
        # The section's own name would make all of its settings look alike.
        name = nearest_name(leaf, inside)
        near = None if name is None else f"{section}.{name}"
    elif near is None:
        near = nearest_name(path, known, 0.5)
    hint = f": did you mean {near!r}?" if near else f": `{listing}` lists all settings"
    return f"unknown setting {path!r}{hint}"


def nearest_setting(name: str) -> str | None:
    """The setting that a word most likely means, such as train.epochs of `num_epochs`; None if none is near.

    Parameters
    ----------
    name
        Perhaps with its sections; `_` joins its words.
    """
    known = _known_keys(Config)
    leaves = [key for key in known if not any(other.startswith(f"{key}.") for other in known)]
    if name in leaves:
        return name
    # A section stands for its kind: `sampler` is sampler.kind.
    by_leaf = {key.removesuffix(".kind"): key for key in leaves if key.endswith(".kind")}
    for key in leaves:
        by_leaf.setdefault(key.rsplit(".", 1)[-1], key)
    name = name.rsplit(".", 1)[-1].lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in by_leaf:
        # `num_epochs`, `hidden_dim`: a part of it is the name.
        part = next((part for part in name.split("_") if part in by_leaf), None)
        near = part or nearest_name(name, by_leaf, 0.7)
        return None if near is None else by_leaf[near]
    return by_leaf[name]


def build_config(settings: Mapping[str, Any], *, lenient: bool = False, own_model: bool = False) -> Config:
    """Validate a nested mapping of settings.

    Parameters
    ----------
    settings
        The settings that are not at their defaults.
    lenient
        Drop the keys of other kinds, which have no effect: for the settings of a run that was started, maybe
        by an earlier version.
    own_model
        Leave out the defaults of `model.kind`: for a module of the user's own.

    Raises
    ------
    ConfigError
        Naming the first wrong key, and the nearest known one where it is unknown.
    """
    try:
        context = LENIENT if lenient else OWN_MODEL if own_model else None
        return Config.model_validate(settings, context=context)
    except ValidationError as error:
        raise ConfigError(explained(error, Config, "hyrt run --print-config")) from None
