"""What a third party's package declares in hyrt's entry-point groups is a peer of what hyrt has."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.installed_package import installed_package
from end_to_end.terminal import TINY, hyrt

from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import InPlaceFeatures
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.neighbor_sampler import NeighborSampler


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed_package("hyrt-extras", tmp_path_factory)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [loss for line in lines for loss in line.get("losses", [])]


def test_the_focal_loss_is_that_of_the_paper(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed["PYTHONPATH"].split(os.pathsep)[0])
    from hyrt_extras.focal import Focal  # type: ignore[import-not-found,unused-ignore]

    rng = np.random.default_rng(2)
    scores, labels, weights = rng.normal(size=(9, 4)), rng.integers(0, 4, 9), rng.random(9)
    chances = np.exp(scores)[np.arange(9), labels] / np.exp(scores).sum(1)
    wanted = -((1 - chances) ** 3) * np.log(chances)
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    assert float(Focal(gamma=3).loss_sum(*tensors, None)) == pytest.approx(wanted.sum())
    assert float(Focal(gamma=3).loss_sum(*tensors, torch.from_numpy(weights))) == pytest.approx(
        wanted @ weights
    )


def test_it_is_trained_for_on_torch_and_on_kernels(installed: dict[str, str], tmp_path: Path) -> None:
    """The OpenCL device returns scores and takes their gradient; the split changes nothing."""
    pytest.importorskip("pyopencl")
    focal = [*TINY, "train.objective=focal", "train.objective_options={gamma: 2}"]
    hyrt("run", *TINY, "--name", "plain", cwd=tmp_path)
    hyrt("run", *focal, "--name", "alone", cwd=tmp_path, **installed)
    hyrt("run", *focal, "--devices", "cpu=1,opencl=1", "--name", "both", cwd=tmp_path, **installed)
    plain, alone, both = (losses(tmp_path / "runs" / name) for name in ("plain", "alone", "both"))
    assert len(alone) == 10
    assert both == pytest.approx(alone, rel=1e-4)
    # Each target's loss is the cross entropy times a factor below 1.
    assert alone[0] < plain[0]
    assert alone[-1] < alone[0]


def test_what_cannot_train_for_it_says_so(installed: dict[str, str], tmp_path: Path) -> None:
    focal = [*TINY, "train.objective=focal"]
    refused = hyrt("run", *focal, "--devices", "fpga-csim", cwd=tmp_path, code=2, **installed)
    assert "fpga-csim:0 does not support objective 'focal'" in refused.stderr
    options = ["train.objective_options={gamma: 0.5}"]
    assert "gamma is 0.5" in hyrt("run", *focal, *options, cwd=tmp_path, code=2, **installed).stderr
    unknown = hyrt("run", *TINY, "train.objective=foca", cwd=tmp_path, code=2, **installed)
    assert "did you mean 'focal'" in unknown.stderr
    missing = hyrt("run", *focal, cwd=tmp_path, code=2)
    assert "the known ones are classification" in missing.stderr


CONTRAST = [*TINY, "model.kind=contrast"]


def test_a_model_of_its_own(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Training in any split, evaluation layer by layer and by whole mini-batches, and options."""
    options = "model.options={strength: 0.5}"
    done = hyrt("run", *CONTRAST, options, "--name", "alone", cwd=tmp_path, **installed)
    assert "contrast 16-" in done.stdout
    two = ["--devices", "cpu:0,cpu:1", "split=[56,200]", "evaluate.memory_gib=0.0001"]
    hyrt("run", *CONTRAST, options, *two, "--name", "both", cwd=tmp_path, **installed)
    hyrt("run", *CONTRAST, "--name", "whole", cwd=tmp_path, **installed)
    alone, both, whole = (tmp_path / "runs" / name for name in ("alone", "both", "whole"))
    assert losses(both) == pytest.approx(losses(alone), rel=1e-4)
    assert losses(whole) != pytest.approx(losses(alone), rel=1e-4)
    assert losses(alone)[-1] < losses(alone)[0]


def test_its_layer_is_what_it_says(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed["PYTHONPATH"].split(os.pathsep)[0])
    from hyrt_extras.contrast import Contrast  # type: ignore[import-not-found,unused-ignore]

    graph = open_graph("synthetic:tiny")
    topology, x = graph.topology, graph.features.values.astype(np.float64)
    a = Architecture(kind="contrast", in_features=x.shape[1], num_classes=3, layers=1)
    layer = Contrast().layer(a, x.shape[1], 3, last=True, strength=0.25)
    everyone = np.arange(graph.num_vertices, dtype=np.int32)
    sampler = NeighborSampler(graph, everyone, [-1], len(everyone), 0)
    with Workers(1, "test") as workers, torch.no_grad():
        block = sampler.sample(0, everyone, workers, in_place=True).blocks[0]
        out = layer(block, InPlaceFeatures(graph.features.matrix), relu=True).double().numpy()
    means = np.stack(
        [
            x[topology.indices[i:j]].mean(0) if j > i else 0 * x[0]
            for i, j in itertools.pairwise(topology.indptr)
        ]
    )
    weight, bias = (p.detach().double().numpy() for p in layer.product.parameters())
    assert out == pytest.approx(np.maximum((x - 0.25 * means) @ weight.T + bias, 0), abs=1e-5)


def test_what_is_wrong_with_a_model_is_said(installed: dict[str, str], tmp_path: Path) -> None:
    wrong = hyrt("run", *CONTRAST, "model.options={power: 2}", cwd=tmp_path, code=2, **installed).stderr
    assert "unexpected keyword argument 'power'" in wrong
    refused = hyrt("run", *CONTRAST, "--devices", "fpga-csim", cwd=tmp_path, code=2, **installed).stderr
    assert "ContrastLayer" in refused
    unknown = hyrt("run", *TINY, "--model", "contrasts", cwd=tmp_path, code=2, **installed).stderr
    assert "did you mean 'contrast'?" in unknown


POISSON = [*TINY, "sampler.kind=poisson", "sampler.fanout=[5,5]"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_sampler_of_its_own(installed: dict[str, str], tmp_path: Path, shared: bool) -> None:
    poisson = [*POISSON, f"sampler.same_in_all_layers={str(shared).lower()}"]
    done = hyrt("run", *poisson, "--name", "alone", cwd=tmp_path, **installed)
    assert "poisson sampler · batch 256" in done.stdout
    two = ["--devices", "cpu:0,cpu:1", "split=[56,200]"]
    hyrt("run", *poisson, *two, "--name", "both", cwd=tmp_path, **installed)
    alone, both = (tmp_path / "runs" / name for name in ("alone", "both"))
    assert losses(both) == pytest.approx(losses(alone), rel=1e-4)
    assert len(losses(alone)) == 10


def poisson_sampler(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, graph: Graph, **settings: Any
) -> Any:
    monkeypatch.syspath_prepend(installed["PYTHONPATH"].split(os.pathsep)[0])
    from hyrt_extras.poisson import PoissonSettings  # type: ignore[import-not-found,unused-ignore]

    targets, layers = np.arange(graph.num_vertices, dtype=np.int32), len(settings["fanout"])
    found = PoissonSettings(kind="poisson", **settings)
    return found.build(graph, targets, layers=layers, batch_size=len(targets), seed=3)


def neighbours(block: Block) -> dict[int, list[int]]:
    """The drawn neighbours of each vertex, as vertices of the graph."""
    assert block.sources is not None
    rows = np.split(block.sources[block.columns], block.indptr[1:-1])
    return {int(v): list(row) for v, row in zip(block.destinations, rows, strict=True)}


@pytest.mark.parametrize("shared", [False, True])
def test_a_cut_changes_no_edge(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    graph = open_graph("synthetic:tiny")
    sampler = poisson_sampler(installed, monkeypatch, graph, fanout=[3, 2], same_in_all_layers=shared)
    units = sampler.units(4)[:300]
    with Workers(1, "test") as workers:
        whole, first, second = (
            [neighbours(block) for block in sampler.sample(4, piece, workers, in_place=False).blocks]
            for piece in (units, units[:70], units[70:])
        )
    for layer in (0, 1):
        assert first[layer] | second[layer] == whole[layer]
        assert all(first[layer][v] == second[layer][v] for v in first[layer].keys() & second[layer].keys())


def test_it_keeps_as_many_neighbours_as_expected_and_shares_them(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = open_graph("synthetic:tiny")
    sampler = poisson_sampler(installed, monkeypatch, graph, fanout=[5])
    everyone, degrees = np.arange(graph.num_vertices, dtype=np.int32), graph.topology.in_degrees
    counts, met = [], []
    with Workers(1, "test") as workers:
        for step in range(30):
            block = sampler.sample(step, everyone, workers, in_place=True).blocks[0]
            counts.append(np.diff(block.indptr))
            met.append(len(np.unique(block.columns)))
    assert all(np.array_equal(each[degrees <= 5], degrees[degrees <= 5]) for each in counts)
    # Binomial: a standard deviation of at most sqrt(5) a draw.
    assert np.abs(np.mean(counts, axis=0) - np.minimum(degrees, 5)).max() < 5 * np.sqrt(5 / len(counts))
    independent = graph.num_vertices * -np.expm1(-np.mean(np.sum(counts, axis=1)) / graph.num_vertices)
    assert np.mean(met) < 0.9 * independent


def test_what_is_wrong_with_its_settings_is_said(installed: dict[str, str], tmp_path: Path) -> None:
    wrong = hyrt("run", *POISSON, "sampler.roots=3", cwd=tmp_path, code=2, **installed).stderr
    assert "sampler.roots is a setting of sampler.kind=saint" in wrong
    wrong = hyrt("run", *POISSON, "sampler.same_in_all=3", cwd=tmp_path, code=2, **installed).stderr
    assert "did you mean 'sampler.same_in_all_layers'?" in wrong
    wrong = hyrt("run", *POISSON, cwd=tmp_path, code=2).stderr
    assert "unknown sampler.kind 'poisson': the known ones are " in wrong
    assert "neighbor, saint" in wrong
    words = ["--platform", "2x-epyc7763-4x-u250", "--data", "ogbn-products", "sampler.kind=poisson"]
    wrong = hyrt("predict", *words, cwd=tmp_path, code=2, **installed).stderr
    assert "sampler.kind=poisson cannot be predicted without the dataset" in " ".join(wrong.split())
