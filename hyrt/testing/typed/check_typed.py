"""Checks of the sums that a step over a typed mini-batch returns."""

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
    """A device that takes typed mini-batches; the check is skipped for others."""
    device = trial.open()
    refusal = "it takes rows of one type of vertices, so runs on typed graphs refuse it before they load it"
    skip_unless("typed" in device.info.forms, refusal)
    return device


def typed_mini_batches_give_the_sums_of_dense_float64(trial: Trial) -> None:
    """Loss sum, gradients, and those of learned rows, with and without weights of edges."""
    device = _opened(trial)
    for weights in (False, True):
        graph = typed_checks_graph(weights=weights)
        for kind in KINDS:
            model = typed_model(graph, kind)
            load(device, model)
            where = f"{kind}{', weights of edges' if weights else ''}"
            _agree(step(device, typed_batch(graph, _TARGETS)), model, graph, where)


def parts_of_a_typed_step_add_up_to_the_whole(trial: Trial) -> None:
    """Loss sums and gradients of a mini-batch that is cut in two, and equal bits of equal steps."""
    device = _opened(trial)
    graph = typed_checks_graph(weights=True)
    model = typed_model(graph, KINDS[0])
    load(device, model)
    whole = kept(step(device, typed_batch(graph, _TARGETS)))
    parts = [kept(step(device, typed_batch(graph, part))) for part in (_TARGETS[:7], _TARGETS[7:])]
    together = sum(part.loss_sum for part in parts)
    close = abs(together - whole.loss_sum) <= 1e-5 * (1 + abs(whole.loss_sum))
    demand(close, f"the parts' losses to add up to {whole.loss_sum:.7g}", f"they give {together:.7g}")
    counts = added([part.counts for part in parts])
    demand(counts == dict(whole.counts), f"the parts' counts to add up to {whole.counts}", counts)
    for number, gradient in enumerate(whole.gradients):
        apart = float((sum(part.gradients[number] for part in parts) - gradient).abs().max())
        bound = 1e-4 * float(gradient.abs().max()) + 1e-6
        demand(apart <= bound, f"gradient {number} of the parts to add up", f"they are {apart:.1e} apart")
    same_bits(step(device, typed_batch(graph, _TARGETS)), whole, "in a typed step that is done again")


def _agree(result: StepResult, model: TypedGNN, graph: Graph, where: str) -> None:
    wanted = expected_typed_step(model, graph, typed_batch(graph, _TARGETS))
    close = abs(result.loss_sum - wanted.loss_sum) <= 1e-5 * (1 + wanted.loss_sum)
    demand(close, f"the loss sum {wanted.loss_sum:.7g}", f"it is {result.loss_sum:.7g} ({where})")
    rows = list(result.row_gradients)
    demand(len(rows) == 1, "gradients of rows of one learned table", f"got {len(rows)} ({where})")
    table = torch.zeros_like(wanted.table)
    table[torch.from_numpy(np.asarray(rows[0].rows))] = rows[0].values.double()
    named = zip(
        [*wanted.names, "the learned rows"],
        [*result.gradients, table],
        [*wanted.gradients, wanted.table],
        strict=True,
    )
    for name, found, exact in named:
        apart = float((found.double() - exact).abs().nan_to_num(torch.inf).max())
        bound = 1e-4 * float(exact.abs().max()) + 1e-6
        demand(
            apart <= bound, f"the gradient of {name} within {bound:.1e}", f"it is {apart:.1e} off ({where})"
        )
