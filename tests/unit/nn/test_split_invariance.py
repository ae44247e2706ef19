"""A batch cut in two unequal mini-batches gives the scores and the summed gradients of the whole."""

from __future__ import annotations

import pytest
import torch
from block_cases import awkward_graph, sampled, sparse_of, values
from closeness import assert_close, gradients
from model_cases import KINDS, model_of

from hyrt.nn.model import GNN
from hyrt.sampling.minibatch import MiniBatch

TARGETS = [5, 3, 70, 11, 12, 0, 41, 40, 88, 19, 20, 21, 61, 62, 63, 64, 1, 2]


def step(model: GNN, batch: MiniBatch, sparse: bool) -> dict[str, torch.Tensor]:
    """Scores, and gradients of the loss summed over the targets."""
    rows = values(awkward_graph())[batch.blocks[0].sources]
    model.zero_grad()
    scores = model(batch.blocks, sparse_of(rows) if sparse else torch.from_numpy(rows))
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels), reduction="sum").backward()
    return {"scores": scores.detach()} | gradients(model.named_parameters())


@pytest.mark.parametrize("sparse", [False, True], ids=["dense rows", "sparse rows"])
@pytest.mark.parametrize("cut", [1, 5, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_two_parts_equal_the_whole(kind: str, cut: int, sparse: bool) -> None:
    graph = awkward_graph()
    masks = {"dropout": 0.5, "input_dropout": 0.3, "attention_dropout": 0.6}
    model = model_of(kind, 10, 2, torch.float32, **masks, residual=True, norm="layer")
    whole, first, second = (
        step(model, sampled(graph, targets, [4, 3], step=11), sparse)
        for targets in (TARGETS, TARGETS[:cut], TARGETS[cut:])
    )
    joined = {name: first[name] + second[name] for name in whole if name != "scores"}
    joined["scores"] = torch.cat([first["scores"], second["scores"]])
    assert_close({"scores": joined.pop("scores")}, {"scores": whole.pop("scores")}, 1e-5)
    assert_close(joined, whole, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_targets_changes_no_score(kind: str) -> None:
    graph = awkward_graph()
    model = model_of(kind, 10, 2, torch.float32, dropout=0.5, input_dropout=0.3)
    forwards = step(model, sampled(graph, TARGETS, [4, 3]), False)
    backwards = step(model, sampled(graph, TARGETS[::-1], [4, 3]), False)
    backwards["scores"] = backwards["scores"].flip(0)
    assert_close(backwards, forwards, 1e-5)
