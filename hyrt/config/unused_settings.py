"""Settings that have no effect in a run; a settings file may serve many runs."""

from __future__ import annotations

from collections.abc import Iterator

from hyrt.config.settings import Config, ModelConfig
from hyrt.errors import HyrtError, join_names
from hyrt.nn.models.model_kind import MODELS, find_model

_KIND_SETTINGS = ("aggregate", "heads", "attention_dropout")
# Settings of the hidden layers, and of operations between two layers.
_HIDDEN_SETTINGS = ("hidden", "dropout", "norm", "residual")


def find_unused_settings(config: Config, num_processes: int, *, custom_model: bool = False) -> list[str]:
    """Return a sentence for each setting of the model or of distributed runs that has no effect.

    Only settings that differ from their default, or from the default of the model kind, count. With
    `custom_model`, a user-defined module is trained, whatever `config.model` contains.
    """
    sentences = [] if custom_model else list(_unused_model_settings(config.model))
    if num_processes == 1:
        if names := _non_defaults(config, "distributed"):
            sentences.append(
                f"{join_names(names)} {_verb_has(names)} no effect in one process: start several with "
                f"torchrun, or omit {_pronoun(names)}"
            )
    return sentences


def find_settings_without_effect(
    config: Config, *, has_folder: bool, rounds_products: bool, evaluates_by_layers: bool
) -> list[str]:
    """Return a sentence for each setting of training, evaluations and checkpoints that has no effect.

    Only settings that differ from their default count. `has_folder` means that this process, or the process
    that writes for it, has a checkpoint folder; `rounds_products` means that a layer multiplies in the
    configured precision.
    """
    sentences = []
    if not has_folder and (names := _non_defaults(config, "checkpoint")):
        sentences.append(
            f"{join_names(names)} {_verb_has(names)} no effect without a folder for checkpoints: give "
            f'hyrt.train(..., folder="runs/name"), or omit {_pronoun(names)}'
        )
    if config.train.precision != "fp32" and not rounds_products:
        sentences.append(
            f"train.precision={config.train.precision} has no effect on this model, whose products stay in "
            "float32: omit it"
        )
    if config.train.patience and config.evaluate.every == 0:
        sentences.append(
            f"train.patience={config.train.patience} has no effect with evaluate.every=0, which evaluates "
            "only at the end: set evaluate.every=1, or omit one of them"
        )
    if not evaluates_by_layers and (names := _non_defaults(config, "evaluate", "memory_gib")):
        sentences.append(
            f"{names[0]} has no effect on evaluations that do not compute layer by layer, such as "
            "evaluate.mode=sampled and those of modules of your own: omit it"
        )
    if not config.runtime.trace and (names := _non_defaults(config, "runtime", "trace_events")):
        sentences.append(f"{names[0]} has no effect without runtime.trace=true: set it, or omit both")
    return sentences


def _non_defaults(config: Config, section: str, *names: str) -> list[str]:
    """Return the settings of a section that are not at their defaults, as `section.name=value`."""
    values = getattr(config, section)
    return [
        f"{section}.{name}={getattr(values, name)}"
        for name, field in type(values).model_fields.items()
        if (not names or name in names) and getattr(values, name) != field.default
    ]


def _verb_has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _pronoun(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _unused_model_settings(model: ModelConfig) -> Iterator[str]:
    kind = find_model(model.kind)
    if kind.reads is None:
        return
    for name, field in ModelConfig.model_fields.items():
        value = getattr(model, name)
        if name in kind.reads or value == kind.defaults.get(f"model.{name}", field.default):
            continue
        if name in _KIND_SETTINGS:
            yield (
                f"model.{name}={value} is not used by {model.kind}: {join_names(_readers(name))} "
                f"{'reads' if len(_readers(name)) == 1 else 'read'} it"
            )
        elif name in _HIDDEN_SETTINGS and model.layers == 1:
            yield f"model.{name}={value} is not used with model.layers=1, which has no hidden layer"


def _readers(name: str) -> list[str]:
    """Return the model kinds that use a setting."""
    kinds = []
    for kind in sorted(MODELS.entries_by_name()):
        try:
            reads = find_model(kind).reads
        except HyrtError:
            continue  # A broken kind is reported when it is used.
        if reads is not None and name in reads:
            kinds.append(kind)
    return kinds
