"""How often a run keeps its model's weights, in memory and on disk. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hyrt.config import Config

_FLOAT_BYTES = 4
# Settings, counters and the state of the generator.
_STATE_BYTES = 10_000
# Numbers that torch.optim keeps for each weight; of optimizers that are not here nothing is counted.
_MOMENTS = {
    "Adadelta": 2,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "ASGD": 1,
    "Muon": 1,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
}
# An option that is set adds one.
_MORE = ("amsgrad", "momentum", "centered")
_WITH_MORE = ("Adam", "AdamW", "RMSprop", "SGD")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes.

    Parameters
    ----------
    once
        All parameters.
    kept
        On the host while a run goes on: the master copy, its gradient and the one before, the optimizer's moments and
        two temporaries of it, the best weights.
    checkpoint
        One file: weights, moments, best weights.
    writing
        What writing it takes: the tensors are copied, each copy is made bytes, and these are joined.
    """

    once: int
    kept: int
    checkpoint: int
    writing: int


def weights(config: Config, num_features: int, num_classes: int) -> Weights:
    """Of the configured model and optimizer.

    Parameters
    ----------
    config
        All settings.
    num_features, num_classes
        Of the dataset.
    """
    once = num_parameters(config, num_features, num_classes) * _FLOAT_BYTES
    moments = num_moments(config.train.optimizer, config.train.optimizer_options)
    file = (2 + moments) * once + _STATE_BYTES
    return Weights(once, (6 + moments) * once, file, 3 * file)


def num_parameters(config: Config, num_features: int, num_classes: int) -> int:
    """Numbers that the configured model learns."""
    model = config.model
    widths = [num_features, *[model.hidden] * (model.layers - 1), num_classes]
    count = 0
    for layer in range(model.layers):
        inner, outer = widths[layer], widths[layer + 1]
        is_last = layer == model.layers - 1
        match model.kind:
            case "graphsage":
                count += (2 * inner + 1) * outer
            case "gcn":
                count += (inner + 1) * outer
            case "gin":
                count += (inner + 1 + outer + 1) * outer
            case "gat":
                # The last layer averages its heads, the others lay them side by side; each scores both ends of an edge.
                rows = model.heads * outer if is_last else outer
                count += (inner + 2) * rows + outer
        if not is_last and model.norm == "layer":
            count += 2 * outer
        if not is_last and model.residual and inner != outer:
            count += inner * outer
    return count


def num_moments(optimizer: str, options: dict[str, Any]) -> int:
    """Numbers that an optimizer keeps for each weight, at least."""
    more = sum(bool(options.get(name)) for name in _MORE) if optimizer in _WITH_MORE else 0
    return _MOMENTS.get(optimizer, 0) + more
