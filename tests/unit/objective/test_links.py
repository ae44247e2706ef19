"""The objective of link prediction against dense float64, scikit-learn and brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from hyrt.graph.links.link_split import LinkEndpoints
from hyrt.graph.topology import Topology
from hyrt.nn.link_gnn import LINK_HEADS
from hyrt.objective import link_prediction
from hyrt.objective.link_prediction import DECODERS, LinkPrediction, LinkQueries, score_pairs

RNG = np.random.default_rng(2)
WIDTH, VERTICES = 5, 14


def head_of(decoder: str) -> torch.nn.Module:
    torch.manual_seed(3)
    head = LINK_HEADS[decoder](WIDTH) if decoder in LINK_HEADS else torch.nn.Identity()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head.double()


def score(head: torch.nn.Module, decoder: str, u: np.ndarray, v: np.ndarray) -> float:
    """A pair's score by its formula."""
    p = {name: parameter.detach().numpy() for name, parameter in head.named_parameters()}
    if decoder == "dot":
        return float(u @ v)
    if decoder == "distmult":
        return float(np.sum(u * p["relation"] * v))
    if decoder == "transe":
        return -float(np.sqrt(np.sum((u + p["relation"] - v) ** 2)))
    hidden = np.maximum(p["hidden.weight"] @ np.concatenate([u, v]) + p["hidden.bias"], 0)
    return float(p["out.weight"][0] @ hidden + p["out.bias"][0])


@pytest.mark.parametrize("decoder", DECODERS)
def test_losses_and_counts_are_those_of_the_formulas(decoder: str) -> None:
    head, embeddings = head_of(decoder), RNG.normal(size=(VERTICES, WIDTH))
    pairs = RNG.integers(0, VERTICES, (6, 4, 2))
    z = np.array([[score(head, decoder, *embeddings[pair]) for pair in of_link] for of_link in pairs])
    rows = head(torch.from_numpy(embeddings)).detach()
    assert rows.shape[1] == DECODERS[decoder].columns(WIDTH)
    probability = 1 / (1 + np.exp(-z))
    bce = -np.log(np.concatenate([probability[:, :1], 1 - probability[:, 1:]], axis=1)).mean(1)
    ranking = np.log1p(np.exp(z[:, 1:] - z[:, :1])).mean(1)
    labels = torch.from_numpy(pairs)
    for loss, wanted in (("bce", bce), ("ranking", ranking)):
        objective = LinkPrediction(decoder=decoder, loss=loss)  # type: ignore[arg-type]
        assert float(objective.loss_sum(rows, labels, None)) == pytest.approx(wanted.sum(), rel=1e-12)
        weights = torch.arange(6.0).double()
        weighed = float(objective.loss_sum(rows, labels, weights))
        assert weighed == pytest.approx((wanted * np.arange(6)).sum(), rel=1e-12)
        counts = objective.count(rows, labels)
        above = int((z[:, :1] > z[:, 1:]).sum())
        assert {name: int(value) for name, value in counts.items()} == {
            "above": above,
            "pairs": 18,
            "targets": 6,
        }
        assert objective.training_metrics({"above": 9, "pairs": 18, "targets": 6}) == {"links_above": 0.5}


@pytest.mark.parametrize("decoder", DECODERS)
def test_metrics_are_those_of_the_libraries_and_of_brute_force(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces of a few pairs and links.
    monkeypatch.setattr(link_prediction, "_MAX_ELEMENTS", 60)
    # Whole numbers, so that some scores are equal.
    embeddings = RNG.integers(-1, 2, (VERTICES, WIDTH)).astype(np.float64)
    head = head_of(decoder)
    rows = head(torch.from_numpy(embeddings)).detach().numpy().astype(np.float32)
    edges = (np.random.default_rng(0).random((VERTICES, VERTICES)) < 0.3) & ~np.eye(VERTICES, dtype=bool)
    indptr = np.concatenate([[0], np.cumsum(edges.sum(1))])
    known = Topology(indptr, np.nonzero(edges)[1].astype(np.int32))
    links = np.argwhere(edges.T)[::5]  # edges[v, u] is one from u to v.
    negatives = RNG.integers(0, VERTICES, (9, 2))
    some = RNG.integers(-1, VERTICES, (len(links), 2, 6))
    of_pair = {
        (u, v): float(score_pairs(torch.from_numpy(rows), np.array([[u, v]]), DECODERS[decoder].score)[0])
        for u, v in product(range(VERTICES), repeat=2)
    }
    for (u, v), found in of_pair.items():
        assert found == pytest.approx(score(head, decoder, embeddings[u], embeddings[v]), abs=1e-4)

    def rank(own: float, others: list[float]) -> float:
        return 1 + sum(each > own for each in others) + 0.5 * sum(each == own for each in others)

    for candidates in (some, None):
        ranks = []
        for i, (u, v) in enumerate(links):
            sources = [w for w in range(VERTICES) if not edges[v, w] and w not in (u, v)]
            destinations = [w for w in range(VERTICES) if not edges[w, u] and w not in (u, v)]
            if candidates is not None:
                sources, destinations = ([w for w in each if w >= 0] for each in candidates[i])
            own = of_pair[u, v]
            ranks.append(rank(own, [of_pair[w, v] for w in sources]))
            ranks.append(rank(own, [of_pair[u, w] for w in destinations]))
        every = (None, None) if candidates is not None else (known, LinkEndpoints.all_vertices(VERTICES))
        asked = LinkQueries(links, negatives, candidates, *every)
        found = LinkPrediction(decoder=decoder).evaluate(rows, asked)
        scores = [of_pair[tuple(pair)] for pair in [*links, *negatives]]
        truth = np.repeat([1, 0], [len(links), 9])
        wanted = {
            "roc_auc": roc_auc_score(truth, scores),
            "average_precision": average_precision_score(truth, scores),
            "loss": log_loss(truth, 1 / (1 + np.exp(-np.array(scores)))),
            "mrr": np.mean([1 / each for each in ranks]),
            **{f"hits@{k}": np.mean([each <= k for each in ranks]) for k in (1, 10, 50)},
        }
        assert found == pytest.approx(wanted, rel=1e-5)
        assert set(found) == set(LinkPrediction.metrics)


def test_wrong_options_are_told() -> None:
    with pytest.raises(ValueError, match=r"decoder is 'cosine': choose one of dot, distmult, transe"):
        LinkPrediction(decoder="cosine")
    with pytest.raises(ValueError, match="loss is 'mse': choose bce or ranking"):
        LinkPrediction(loss="mse")  # type: ignore[arg-type]


def test_scores_that_are_no_numbers_rank_nowhere() -> None:
    """A link among candidates: its own score, one of a candidate, one of a pair that is no link."""
    rows = np.array([[1, 0], [2, 1], [3, 1], [0, 2], [4, 4]], np.float32)
    links, negatives = np.array([[0, 1], [1, 2]]), np.array([[3, 1]])
    candidates = np.array([[[2, -1], [2, 3]], [[0, 3], [3, -1]]])
    asked = LinkQueries(links, negatives, candidates)
    finite = LinkPrediction().evaluate(rows, asked)
    assert all(np.isfinite(value) for value in finite.values())
    for vertex, is_worthless in ((0, True), (3, True), (4, False)):
        scores = rows.copy()
        scores[vertex, 0] = np.nan
        found = LinkPrediction().evaluate(scores, asked)
        assert all(np.isnan(found[name]) for name in ("mrr", "hits@1", "hits@50", "roc_auc")) == is_worthless
        assert found == (pytest.approx(finite) if vertex == 4 else pytest.approx(found, nan_ok=True))
    # Links are compared with nothing: no figure is made up.
    alone = LinkPrediction().evaluate(rows, LinkQueries(links, negatives[:0], candidates))
    assert np.isnan([alone["roc_auc"], alone["average_precision"]]).all()
    assert alone["mrr"] == finite["mrr"]
    empty = LinkPrediction().evaluate(rows, LinkQueries(links[:0], negatives, candidates[:0]))
    assert np.isnan([empty["mrr"], empty["hits@10"], empty["average_precision"]]).all()
