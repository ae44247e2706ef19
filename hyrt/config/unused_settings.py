"""Settings that a user has given and that this run does not read: a file of settings may serve many runs."""

from __future__ import annotations

from collections.abc import Iterator

from hyrt.config.settings import Config, ModelConfig
from hyrt.errors import HyrtError, listed
from hyrt.nn.models.model_kind import MODELS, find_model

_OF_KINDS = ("aggregate", "heads", "attention_dropout")
# Of what is between two layers.
_OF_HIDDEN = ("hidden", "dropout", "norm", "residual")


def unused_settings(config: Config, num_processes: int, *, own_model: bool = False) -> list[str]:
    """A sentence for each setting of the model or of several processes that has no effect.

    Only what is not at its default, or at that of the model's kind, counts as given.

    Parameters
    ----------
    config
        All settings.
    num_processes
        How many processes train together.
    own_model
        Whether a module of the user's is trained, whatever `config.model` says.
    """
    found = [] if own_model else list(_of_model(config.model))
    if num_processes == 1:
        if given := _given(config, "distributed"):
            found.append(
                f"{listed(given)} {_has(given)} no effect in one process: start several with torchrun, or "
                f"omit {_it(given)}"
            )
    return found


def settings_without_effect(
    config: Config, *, has_folder: bool, rounds_products: bool, evaluates_by_layers: bool
) -> list[str]:
    """Return a sentence for each setting of training, evaluations and checkpoints that has no effect.

    Only what is not at its default counts as given.

    Parameters
    ----------
    config
        All settings.
    has_folder
        Whether this process, or the one that writes for it, has a folder for checkpoints.
    rounds_products
        Whether some layer of the model multiplies in the precision of the settings.
    evaluates_by_layers
        Whether evaluations compute layer by layer.
    """
    found = []
    if not has_folder and (given := _given(config, "checkpoint")):
        found.append(
            f"{listed(given)} {_has(given)} no effect without a folder for checkpoints: give "
            f'hyrt.train(..., folder="runs/name"), or omit {_it(given)}'
        )
    if config.train.precision != "fp32" and not rounds_products:
        found.append(
            f"train.precision={config.train.precision} has no effect on this model, whose products stay in "
            "float32: omit it"
        )
    if config.train.patience and config.evaluate.every == 0:
        found.append(
            f"train.patience={config.train.patience} has no effect with evaluate.every=0, which evaluates "
            "only at the end: set evaluate.every=1, or omit one of them"
        )
    if not evaluates_by_layers and (given := _given(config, "evaluate", "memory_gib")):
        found.append(
            f"{given[0]} has no effect on evaluations that do not compute layer by layer, such as "
            "evaluate.mode=sampled and those of modules of your own: omit it"
        )
    if not config.runtime.trace and (given := _given(config, "runtime", "trace_events")):
        found.append(f"{given[0]} has no effect without runtime.trace=true: set it, or omit both")
    return found


def _given(config: Config, section: str, *names: str) -> list[str]:
    """Return the settings of a section that are not at their defaults, as `section.name=value`."""
    values = getattr(config, section)
    return [
        f"{section}.{name}={getattr(values, name)}"
        for name, field in type(values).model_fields.items()
        if (not names or name in names) and getattr(values, name) != field.default
    ]


def _has(given: list[str]) -> str:
    return "has" if len(given) == 1 else "have"


def _it(given: list[str]) -> str:
    return "it" if len(given) == 1 else "them"


def _of_model(model: ModelConfig) -> Iterator[str]:
    kind = find_model(model.kind)
    if kind.reads is None:
        return
    for name, field in ModelConfig.model_fields.items():
        value = getattr(model, name)
        if name in kind.reads or value == kind.defaults.get(f"model.{name}", field.default):
            continue
        if name in _OF_KINDS:
            yield (
                f"model.{name}={value} is not used by {model.kind}: {listed(_readers(name))} "
                f"{'reads' if len(_readers(name)) == 1 else 'read'} it"
            )
        elif name in _OF_HIDDEN and model.layers == 1:
            yield f"model.{name}={value} is not used with model.layers=1, which has no hidden layer"


def _readers(name: str) -> list[str]:
    """The kinds of models that read a setting."""
    kinds = []
    for kind in sorted(MODELS.declared()):
        try:
            reads = find_model(kind).reads
        except HyrtError:
            continue  # Whoever asks for this kind hears why it is broken.
        if reads is not None and name in reads:
            kinds.append(kind)
    return kinds
