"""Links of one relation of a heterogeneous graph: what carries messages, what is drawn, and dense float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import refused, run_here

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.graph.links.negative_sampling import sample_candidates
from hyrt.nn.link_gnn import HeteroLinkGNN
from hyrt.runtime.workers import Workers
from hyrt.sampling.link_sampler import NegativeKind, NegativeSampler
from hyrt.training.build_run import build_run
from hyrt.training.open_graph import link_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

AUTHORS, PAPERS = 30, 40
Edge = tuple[int, int, int]
"""Relation, source and destination."""
ALONE = Workers(1, "test")


def made(back: str = "rev_writes", both: bool = False, lacks: int = 0) -> Graph:
    """Authors, papers, what authors write and what leads back, and citations, which go `both` ways or not."""
    rng = np.random.default_rng(4)
    cells = rng.choice(AUTHORS * PAPERS, 150, replace=False)
    writes = np.divmod(cells, PAPERS)
    cites = np.divmod(rng.choice(PAPERS**2, 90, replace=False), PAPERS)
    if both:
        cites = tuple(np.unique(np.concatenate([np.stack(cites), np.stack(cites[::-1])], 1), axis=1))
    edges = {
        ("author", "writes", "paper"): writes,
        # Some of the same pairs, which are other edges.
        ("author", "likes", "paper"): (writes[0][:60], writes[1][:60]),
        ("paper", "cites", "paper"): cites,
        ("paper", back, "author"): (writes[1][lacks:], writes[0][lacks:]),
    }
    tables = {
        name: rng.standard_normal((count, 5)).astype(np.float32)
        for name, count in (("author", AUTHORS), ("paper", PAPERS))
    }
    weights = {
        triple: rng.uniform(0.5, 2, len(edges[triple][0]))
        for triple in (("author", "writes", "paper"), ("paper", back, "author"))
    }
    masks = dict.fromkeys(("train", "val", "test"), np.zeros(PAPERS, np.bool_))
    return build_hetero_graph("made", tables, edges, np.zeros(PAPERS, np.int64), masks, "paper", weights)


def settings(**sections: Any) -> dict[str, Any]:
    is_full = sections.get("sampler", {}).get("kind") == "full"
    return {
        "model": {"kind": "rgcn", "hidden": 6, "layers": 2, "dropout": 0.0},
        "sampler": {"fanout": [-1, -1]},
        **({} if is_full else {"data": {"batch_size": 64}}),
        "train": {"objective": "links", "epochs": 2, "optimizer": "SGD", "lr": 0.1, "weight_decay": 0.0},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        "evaluate": {"every": 0},
        **sections,
        "links": {"relation": "writes", **sections.get("links", {})},
    }


def split_graph(graph: Graph, **sections: Any) -> Graph:
    return link_graph(build_config(settings(**sections)), graph)


def edges_of(graph: Graph) -> dict[Edge, float]:
    """The weights of edges."""
    topology = graph.topology
    assert topology.edge_types is not None
    assert topology.edge_weights is not None
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    keys = zip(topology.edge_types.tolist(), topology.indices.tolist(), rows.tolist(), strict=True)
    return dict(zip(keys, topology.edge_weights.tolist(), strict=True))


def held_out(graph: Graph) -> set[tuple[int, int]]:
    assert graph.links is not None
    parts = graph.links.split.held_out.values()
    return {(int(u), int(v)) for part in parts for u, v in part.links}


@pytest.mark.parametrize(("back", "lacks"), [("rev_writes", 0), ("written by", 0), ("written by", 1)])
def test_no_relation_shows_a_held_out_link(back: str, lacks: int) -> None:
    """A relation that leads back is called as it likes, and may lack an edge; another one repeats links."""
    graph = made(back, lacks=lacks)
    found = split_graph(graph)
    hidden = held_out(found)
    assert len(hidden) == 8 + 15
    wanted = {
        (r, u, v): weight for (r, u, v), weight in edges_of(graph).items() if not {(u, v), (v, u)} & hidden
    }
    assert edges_of(found) == wanted
    assert found.links is not None
    counts = [
        sum({(u, v), (v, u)} & hidden != set() and r == of for r, u, v in edges_of(graph)) for of in (1, 3)
    ]
    (line,) = found.links.notes
    assert line == (
        f"message passing also excludes {sum(counts)} edges between the same vertices ({counts[0]} of "
        f"author/likes/paper and {counts[1]} of paper/{back}/author) so that held-out links stay hidden"
    )


def test_links_within_a_type_that_go_both_ways_are_one() -> None:
    graph = made(both=True)
    found = split_graph(graph, links={"relation": "paper/cites/paper", "val": 0.2})
    hidden = held_out(found)
    wanted = {
        key: weight
        for key, weight in edges_of(graph).items()
        if key[0] != 2 or not {key[1:], key[:0:-1]} & hidden
    }
    assert edges_of(found) == wanted
    assert found.links is not None
    train = {(int(u), int(v)) for u, v in found.links.split.train}
    assert not {(v, u) for u, v in train} & (train | hidden)


def test_the_latest_links_of_a_relation_are_the_test_links() -> None:
    graph = made()
    times = np.random.default_rng(0).permutation(graph.num_edges)
    graph = replace(graph, topology=replace(graph.topology, edge_times=times))
    when = {key[1:]: time for key, time in zip(edges_of(graph), times.tolist(), strict=True) if key[0] == 1}
    relation = {"relation": "likes", "val": 0.1, "test": 0.2, "split": "time"}
    found = split_graph(graph, links=relation)
    assert found.links is not None
    split = found.links.split
    parts = (split.train, *(split.held_out[name].links for name in ("val", "test")))
    drawn = [[when[pair] for pair in map(tuple, part.tolist())] for part in parts]
    assert list(map(len, drawn)) == [42, 6, 12]
    assert sorted(when.values()) == [time for part in drawn for time in sorted(part)]


@pytest.mark.parametrize("kind", ["uniform", "degree", "batch"])
def test_other_pairs_are_of_the_same_types_and_no_edges(kind: NegativeKind) -> None:
    found = split_graph(made())
    assert found.links is not None
    links, ends = found.links, found.links.ends
    negatives = NegativeSampler(kind, 5, 0, links.train_edges, ends)
    train = links.split.train
    pairs = negatives.sample(0, np.arange(len(train)), train, train).reshape(-1, 2)
    held = [part.negatives for part in links.split.held_out.values()]
    candidates = sample_candidates(links.known_edges, train, 0, "val", 4, ends)
    others = [
        np.stack([candidates[:, 0].ravel(), np.repeat(train[:, 1], 4)], 1),
        np.stack([np.repeat(train[:, 0], 4), candidates[:, 1].ravel()], 1),
    ]
    writes = {key[1:] for key in edges_of(made()) if key[0] == 0}
    for drawn, known in ((pairs, writes - held_out(found)), *((each, writes) for each in (*held, *others))):
        assert ((drawn[:, 0] >= 0) & (drawn[:, 0] < AUTHORS)).all()
        assert ((drawn[:, 1] >= AUTHORS) & (drawn[:, 1] < AUTHORS + PAPERS)).all()
        assert not known & set(map(tuple, drawn.tolist()))


def means(graph: Graph, left_out: set[Edge]) -> torch.Tensor:
    """[R, V, V] what a source counts in the weighted mean of a relation, without some edges."""
    out = np.zeros((4, graph.num_vertices, graph.num_vertices))
    for (r, u, v), weight in edges_of(graph).items():
        if (r, u, v) not in left_out:
            out[r, v, u] = weight
    sums = out.sum(2, keepdims=True)
    return torch.from_numpy(out / np.where(sums > 0, sums, 1))


def dense_weights(graph: Graph, **sections: Any) -> np.ndarray[Any, Any]:
    """The weights after all steps, by matrices of all vertices in float64."""
    config = build_config(settings(**sections))
    found = link_graph(config, graph)
    prepared = PreparedRun(config, found)
    model, objective, sampler = prepared.model.double(), prepared.objective, prepared.sampler
    p = dict(model.named_parameters())
    raw = [torch.from_numpy(np.asarray(table.values)).double() for table in graph.features.tables]  # type: ignore[attr-defined]
    for step in range((config.train.epochs or 0) * sampler.steps_per_epoch()):
        batch = sampler.sample(step, sampler.units(step), ALONE, in_place=False)
        pairs = batch.targets[batch.labels].astype(np.int64)
        links = [] if config.sampler.is_full_graph else pairs[:, 0].tolist()
        # Relation 2 is between papers; 0 and 1 join authors with papers, and 3 leads back.
        there, back = ((2,), 2) if config.links.relation == "cites" else ((0, 1), 3)
        counted = means(
            found, {(r, u, v) for u, v in links for r in there} | {(back, v, u) for u, v in links}
        )
        h = torch.cat(
            [rows @ p[f"input.maps.{t}.weight"].T + p[f"input.maps.{t}.bias"] for t, rows in enumerate(raw)]
        )
        for i in range(2):
            total = h @ p[f"layers.{i}.own"].T + p[f"layers.{i}.bias"]
            for r in range(4):
                total = total + counted[r] @ h @ p[f"layers.{i}.weight"][r].T
            h = total if i else total.relu()
        rows = model.head(h) if isinstance(model, HeteroLinkGNN) else h
        loss = objective.loss_sum(rows, torch.from_numpy(pairs), None) / len(pairs)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()


CASES: dict[str, dict[str, Any]] = {
    "dot": {},
    "mlp": {"links": {"decoder": "mlp", "negatives": "degree", "supervision": 0.5}},
    "within a type": {"links": {"relation": "cites"}},
    "full graph": {"sampler": {"kind": "full"}, "links": {"decoder": "distmult"}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_are_those_of_dense_float64_for_every_split(case: dict[str, Any]) -> None:
    graph = made()
    wanted = dense_weights(graph, **case)
    splits: list[dict[str, Any]] = [{}]
    if "sampler" not in case:
        splits.append({"devices": ["cpu:0=2", "cpu:1=1"]})
    for split in splits:
        config = build_config(settings(**case, **split))
        result = Training(build_run(config, link_graph(config, graph))).run()
        found = torch.cat([each.detach().flatten().double() for each in result.model.parameters()]).numpy()
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_all_vertices_of_a_type_may_be_candidates() -> None:
    """Ranks among all are those among all of the type that make no known edge, given one by one."""
    graph = made()
    config = build_config(settings(links={"candidates": "all"}))
    found = link_graph(config, graph)
    result = Training(build_run(config, found)).run()
    assert found.links is not None
    rows = hyrt.inference.infer.infer_layerwise(
        *(result.model, found, np.arange(graph.num_vertices), ALONE), memory_bytes=1 << 24
    )
    writes = {key[1:] for key in edges_of(graph) if key[0] == 0}
    ranks = []
    for u, v in found.links.split.held_out["val"].links.tolist():
        own = rows[u] @ rows[v]
        for others in (
            [rows[w] @ rows[v] for w in range(AUTHORS) if (w, v) not in writes],
            [rows[u] @ rows[w] for w in range(AUTHORS, AUTHORS + PAPERS) if (u, w) not in writes],
        ):
            ranks.append(1 + sum(each > own for each in others))
    assert result.metrics["val"]["mrr"] == pytest.approx(np.mean([1 / each for each in ranks]), rel=1e-5)


def test_what_is_no_relation_and_no_link_is_told(tmp_path: Path) -> None:
    graph = made()
    known = "author/writes/paper, author/likes/paper, paper/cites/paper or paper/rev_writes/author"
    for links, told in (
        (
            {"relation": None},
            rf"predicts one relation of a heterogeneous graph: set links\.relation={known}",
        ),
        ({"relation": "wrote"}, rf"links\.relation=wrote matches no relation: set it to {known}"),
    ):
        with pytest.raises(ConfigError, match=told):
            split_graph(graph, links=links)
    with pytest.raises(
        ConfigError, match=r"links\.relation=writes requires a heterogeneous graph, but cora has no"
    ):
        split_graph(hyrt.load("cora"))
    np.savez(tmp_path / "links.npz", val=np.array([[0, 35], [35, 0]]))
    with pytest.raises(DataError, match=r"'val': vertex 35 in row 1 is not of type 'author', as the source"):
        split_graph(graph, links={"split": str(tmp_path / "links.npz")})
    empty = replace(graph, topology=replace(graph.topology, **_without(graph, 2)))
    with pytest.raises(DataError, match="has no edges from paper to paper to predict"):
        split_graph(empty, links={"relation": "cites"})


def _without(graph: Graph, relation: int) -> dict[str, Any]:
    """The arrays of a topology without the edges of a relation."""
    topology = graph.topology
    kept = topology.edge_types != relation
    indptr = np.concatenate([[0], np.cumsum(kept)])[topology.indptr]
    of_edges = {name: getattr(topology, name)[kept] for name in ("indices", "edge_types", "edge_weights")}
    return {"indptr": indptr, **of_edges}


def test_the_commands_of_a_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(
        *("run", "--data", "synthetic:hetero,vertices=600,edges=6000", "--model", "rsage", "--name", "r"),
        *("train.objective=links", "links.relation=writes", "train.epochs=3", "model.hidden=16"),
        *("data.batch_size=300", "--quiet", "links.decoder=distmult"),
        cwd=tmp_path,
    )
    run_here("eval", "runs/r", cwd=tmp_path)
    assert "ROC AUC" in capsys.readouterr().out
    types = hyrt.load("synthetic:hetero,vertices=600,edges=6000").types
    assert types is not None
    author, paper = types.interval("author")[0], types.interval("paper")[0]
    np.save(tmp_path / "pairs.npy", np.array([[author, paper], [author + 1, paper + 2]]))
    run_here("infer", "runs/r", "--links", "pairs.npy", "-o", "scores.npy", cwd=tmp_path)
    assert np.load(tmp_path / "scores.npy").shape == (2,)
    run_here("infer", "runs/r", "-o", "embeddings.npy", cwd=tmp_path)
    assert np.load(tmp_path / "embeddings.npy").shape == (600, 16)
    np.save(tmp_path / "pairs.npy", np.array([[paper, author]]))
    told = refused("infer", "runs/r", "--links", "pairs.npy", "-o", "other.npy", cwd=tmp_path)
    assert "is not of type 'author', as the source of a link must be" in told
