"""Write docs/configuration.md from the settings that are declared in hyrt/config and hyrt/sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from hyrt.config import Config
from hyrt.config.validation import PluginSection
from hyrt.nn.models.model_kind import MODELS, find_model
from hyrt.runtime.entry_points import is_third_party

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """# Settings

`make docs` generates this page from the settings that are declared in `hyrt/config/` and `hyrt/sampling/`.

Settings are read from several sources. Later sources override earlier sources:

1. the defaults below;
2. a YAML file;
3. the options `--data`, `--model` and `--devices`, and `--epochs`, `--lr`, `--hidden`, `--layers`,
   `--batch-size` and `--seed`, which are short forms of the settings with these names;
4. arguments of the form `key.path=value`. Values are parsed as YAML, except that numbers are always decimal
   (`010` is 10, not 8) and that dates are text.

If the command line sets a setting twice, for example by an option and by an argument, hyrt prints a warning.

For example:

    hyrt run settings.yaml --data cora.npz train.epochs=50 sampler.fanout=10,5
    hyrt run --data cora.npz train.optimizer_options='{eps: 1e-7}'

`hyrt init --data cora.npz` writes a settings file to edit, with an explanation of every setting. `hyrt run
--print-config` prints all resolved settings as a valid settings file. An unknown key is an
error that names the nearest known key. In Python, sections are keyword arguments:
`hyrt.train(graph, "gcn", train={"epochs": 50}, seed=1)`.

A resumed run may change `train.epochs`, `checkpoint.*`, `runtime.*`, `fullgraph.host_memory`, `balance.*` and
`evaluate.*`; the settings of `distributed` that move work without changing the training result (`cache`,
`network`, `pre_gather`, `shared_memory_features`, `shares`, `time_steps`, `timeout_s`); and the path of the
graph (`--data`), for example to use a partition for another number of ranks.
"""

MODELS_HEAD = """Each model has suitable defaults for these settings; explicit settings override them.
`hyrt run --model KIND --print-config` prints the result."""


def values(schema: dict[str, Any]) -> str:
    """Describe the possible values of a setting."""
    if "anyOf" in schema:
        return " or ".join(values(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema["type"]:
        case "array":
            items = re.sub(r"^(integer|number)", r"\1s", values(schema["items"]))
            return f"list of {items}"
        case "boolean":
            return "`true`, `false`"
        case "object":
            return "mapping"
        case "null":
            return "`null`"
        case "string":
            return "text"
    bounds = [
        f"{sign} {schema[key]:,.10g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema and schema[key] < 2**31
    ]
    return " ".join([schema["type"], ", ".join(bounds)]).strip()


def rows(section: type[BaseModel], prefix: str, *, but: Collection[str] = (), kind: str = "") -> list[str]:
    """Return a line per setting of a section, without subsections; `kind` is the plug-in kind of the
    settings.
    """
    schema = section.model_json_schema()
    lines = []
    for name, field in section.model_fields.items():
        if is_section(field.annotation) or name in but:
            continue
        default = yaml.safe_dump(field.default, default_flow_style=True).split("\n")[0]
        meaning = " ".join((field.description or "").split())
        if kind:
            meaning = f"For `{kind}`: {meaning[0].lower()}{meaning[1:]}"
        lines.append(f"| `{prefix}{name}` | `{default}` | {values(schema['properties'][name])} | {meaning} |")
    return lines


def defaults_of_models() -> list[str]:
    """Return a line per setting with model-specific defaults, and a column per model kind."""
    builtin_kinds = sorted(
        kind for kind in MODELS.entries_by_name() if not is_third_party(MODELS.find_entry(kind))
    )
    kinds = {kind: find_model(kind).defaults for kind in builtin_kinds}
    names = sorted({name for defaults in kinds.values() for name in defaults})
    sections = Config.model_fields
    lines = [
        "| setting | " + " | ".join(f"`{kind}`" for kind in kinds) + " |",
        "| --- |" + " --- |" * len(kinds),
    ]
    for name in names:
        section, _, key = name.partition(".")
        default = sections[section].annotation.model_fields[key].default
        values = (
            f"`{json.dumps(defaults.get(name, default)).strip(chr(34))}`" for defaults in kinds.values()
        )
        lines.append(f"| `{name}` | {' | '.join(values)} |")
    return lines


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def page() -> str:
    columns = ["", "| setting | default | values | meaning |", "| --- | --- | --- | --- |"]
    lines = [HEAD, "## Top-level settings", *columns, *rows(Config, "")]
    for name, field in Config.model_fields.items():
        if is_section(field.annotation):
            lines += ["", f"## {name}", *columns, *rows(field.annotation, f"{name}.")]
            for marker in field.metadata:
                if isinstance(marker, PluginSection):
                    shared = field.annotation.model_fields
                    for kind, section in marker.sections():
                        # Plug-ins of other packages on this machine are not part of hyrt's documentation.
                        if is_third_party(marker.group.find_entry(kind)):
                            continue
                        lines += rows(section, f"{name}.", but=shared, kind=kind)
    lines += ["", "## Model defaults", "", MODELS_HEAD, "", *defaults_of_models()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
