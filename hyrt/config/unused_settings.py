"""Settings that a user has given and that this run does not read: a file of settings may serve many runs."""

from __future__ import annotations

from collections.abc import Iterator

from hyrt.config.settings import Config, DistributedConfig, ModelConfig
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
        given = [
            f"distributed.{name}={getattr(config.distributed, name)}"
            for name, field in DistributedConfig.model_fields.items()
            if getattr(config.distributed, name) != field.default
        ]
        if given:
            has = "has" if len(given) == 1 else "have"
            found.append(
                f"{listed(given)} {has} no effect in one process: start several with torchrun, or omit "
                f"{'it' if len(given) == 1 else 'them'}"
            )
    return found


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
