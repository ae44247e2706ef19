"""Write docs/configuration.md and docs/compatibility.md from the declarations in the code."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from hyrt.config import Config
from hyrt.config.compatibility import (
    FEATURES,
    SETTING_REFUSALS,
    distributed_settings_refusal,
    model_component,
    sampler_component,
)
from hyrt.config.validation import PluginSection
from hyrt.distributed.strategies.registry import STRATEGIES, strategy_component
from hyrt.nn.models.model_kind import MODELS, find_model
from hyrt.runtime.entry_points import EntryPointGroup, is_third_party
from hyrt.sampling.sampler_settings import SAMPLERS, SamplerSettings
from hyrt.sampling.settings.neighbor_settings import NeighborSettings

DOCS = Path(__file__).parents[1] / "docs"
PAGE, COMPATIBILITY_PAGE = DOCS / "configuration.md", DOCS / "compatibility.md"

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
    kinds = {kind: find_model(kind).defaults for kind in builtin_kinds(MODELS)}
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


COMPATIBILITY_HEAD = """# Compatibility

`make docs` generates this page from declarations in the code, which `hyrt/config/compatibility.py` checks
before a run starts. If a part of a run does not support a feature of the run, the error names both and the
alternatives.

Other tables describe [edge weights and features](edges.md#feature-compatibility), [heterogeneous
graphs](heterogeneous.md#feature-compatibility), [link prediction](links.md#feature-compatibility) and
[devices](devices.md)."""


def builtin_kinds(group: EntryPointGroup) -> list[str]:
    """Return the kinds that hyrt declares itself."""
    return sorted(kind for kind in group.entries_by_name() if not is_third_party(group.find_entry(kind)))


def refusals() -> dict[str, dict[str, set[str]]]:
    """Return the refused features by setting and kind."""
    samplers = {kind: SAMPLERS.load_class(kind, SamplerSettings)() for kind in builtin_kinds(SAMPLERS)}
    return {
        "sampler.kind": {kind: {*sampler_component(section).refuses} for kind, section in samplers.items()},
        "model.kind": {kind: {*model_component(kind).refuses} for kind in builtin_kinds(MODELS)},
        "distributed.strategy": {name: {*strategy_component(name).refuses} for name in STRATEGIES},
    }


def setting_refusals() -> dict[str, list[str]]:
    """Return the features that single settings refuse, in the order of `FEATURES`."""
    found = {
        **SETTING_REFUSALS,
        "--full-graph on several ranks": distributed_settings_refusal("").refuses,
        **NeighborSettings(on_device=True).restrictions(),
        **NeighborSettings(degrees="sampled").restrictions(),
        **NeighborSettings(relation_fanout={"cites": 5}).restrictions(),
    }
    return {name: [each for each in FEATURES if each in refused] for name, refused in found.items()}


def compatibility_page() -> str:
    """Return the page with a table per kind of component: features are rows, kinds are columns."""
    lines = [COMPATIBILITY_HEAD]
    for setting, kinds in refusals().items():
        features = [name for name in FEATURES if any(name in refused for refused in kinds.values())]
        names = " | ".join(f"`{kind}`" for kind in kinds)
        lines += ["", f"## {setting}", "", f"| feature | {names} |", "| --- |" + " --- |" * len(kinds)]
        for name in features:
            cells = ("refused" if name in refused else "yes" for refused in kinds.values())
            lines.append(f"| {FEATURES[name].title} | {' | '.join(cells)} |")
    lines += ["", "## Other settings", "", "| setting | refused with |", "| --- | --- |"]
    for name, refused in setting_refusals().items():
        lines.append(f"| `{name}` | {', '.join(FEATURES[each].title for each in refused)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    COMPATIBILITY_PAGE.write_text(compatibility_page(), encoding="utf-8")
