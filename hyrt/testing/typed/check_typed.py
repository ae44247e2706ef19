"""Checks of the sums of a step on a heterogeneous mini-batch."""

from __future__ import annotations

import numpy as np
import torch

from hyrt.device import Device, StepResult
from hyrt.graph.graph import Graph
from hyrt.nn.typed.typed_gnn import TypedGNN
from hyrt.objective.objective import added
from hyrt.testing.trial import Trial, demand, kept, load, same_bits, skip_unless, step
from hyrt.testing.typed.typed_cases import (
    KINDS,
    expected_typed_step,
    typed_batch,
    typed_checks_graph,
    typed_model,
)

_TARGETS = tuple(range(0, 60, 3))


def _opened(trial: Trial) -> Device:
    """Open a device that accepts heterogeneous mini-batches; skip the check for other devices."""
    device = trial.open()
    refusal = "it does not support heterogeneous graphs"
    skip_unless("typed" in device.info.forms, refusal)
    return device


def heterogeneous_mini_batches_match_dense_float64(trial: Trial) -> None:
    """Check loss sum and gradients, including sparse embedding gradients, with and without edge weights."""
    device = _opened(trial)
    for weights in (False, True):
        graph = typed_checks_graph(weights=weights)
        for kind in KINDS:
            model = typed_model(graph, kind)
            load(device, model)
            where = f"{kind}{', weights of edges' if weights else ''}"
            _agree(step(device, typed_batch(graph, _TARGETS)), model, graph, where)


def parts_of_a_heterogeneous_step_add_up_to_the_whole(trial: Trial) -> None:
    """Check that a step split in two adds up to the whole step, and that repeated steps are bit-equal."""
    device = _opened(trial)
    graph = typed_checks_graph(weights=True)
    model = typed_model(graph, KINDS[0])
    load(device, model)
    whole = kept(step(device, typed_batch(graph, _TARGETS)))
    parts = [kept(step(device, typed_batch(graph, part))) for part in (_TARGETS[:7], _TARGETS[7:])]
    total = sum(part.loss_sum for part in parts)
    close = abs(total - whole.loss_sum) <= 1e-5 * (1 + abs(whole.loss_sum))
    demand(close, f"the parts' losses to add up to {whole.loss_sum:.7g}", f"they give {total:.7g}")
    counts = added([part.counts for part in parts])
    demand(counts == dict(whole.counts), f"the parts' counts to add up to {whole.counts}", counts)
    for number, gradient in enumerate(whole.gradients):
        difference = float((sum(part.gradients[number] for part in parts) - gradient).abs().max())
        bound = 1e-4 * float(gradient.abs().max()) + 1e-6
        demand(
            difference <= bound,
            f"gradient {number} of the parts to add up",
            f"they are {difference:.1e} apart",
        )
    same_bits(step(device, typed_batch(graph, _TARGETS)), whole, "in a typed step that is done again")


def _agree(result: StepResult, model: TypedGNN, graph: Graph, where: str) -> None:
    reference = expected_typed_step(model, graph, typed_batch(graph, _TARGETS))
    close = abs(result.loss_sum - reference.loss_sum) <= 1e-5 * (1 + reference.loss_sum)
    demand(close, f"the loss sum {reference.loss_sum:.7g}", f"it is {result.loss_sum:.7g} ({where})")
    rows = list(result.row_gradients)
    demand(len(rows) == 1, "gradients of rows of one learned table", f"got {len(rows)} ({where})")
    table = torch.zeros_like(reference.table)
    table[torch.from_numpy(np.asarray(rows[0].rows))] = rows[0].values.double()
    named = zip(
        [*reference.names, "the learned rows"],
        [*result.gradients, table],
        [*reference.gradients, reference.table],
        strict=True,
    )
    for name, gradient, exact in named:
        difference = float((gradient.double() - exact).abs().nan_to_num(torch.inf).max())
        bound = 1e-4 * float(exact.abs().max()) + 1e-6
        demand(
            difference <= bound,
            f"the gradient of {name} within {bound:.1e}",
            f"it is {difference:.1e} off ({where})",
        )
