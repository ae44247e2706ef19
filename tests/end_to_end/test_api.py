from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.terminal import TINY, summary
from end_to_end.terminal import hyrt as run_hyrt

import hyrt
from hyrt.config import build_config, to_yaml
from hyrt.config.settings import TrainConfig
from hyrt.errors import CheckpointError, ConfigError, DataError, RunWarning, StageError
from hyrt.inference.evaluate import Evaluator
from hyrt.nn.operators.aggregate import aggregate
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.telemetry.events import Event, StepMetrics


class Mine(torch.nn.Module):
    """A user's own two layers over blocks."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(features, 32)
        self.second = torch.nn.Linear(32, classes)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(aggregate(blocks[0], x, "mean") + x[: blocks[0].num_dst]))
        return self.second(aggregate(blocks[1], x, "mean") + x[: blocks[1].num_dst])


def losses(**sections: Any) -> list[float]:
    heard: list[Event] = []
    data = {"batch_size": 128}
    hyrt.train("synthetic:tiny", emit=heard.append, data=data, **{"train": {"epochs": 2}, **sections})
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


def test_training_a_module_of_ones_own(tmp_path: Path) -> None:
    graph = hyrt.load("synthetic:tiny")
    torch.manual_seed(0)
    mine = Mine(graph.num_features, graph.num_classes)
    result = hyrt.train(
        graph, mine, train={"epochs": 8, "lr": 0.01}, data={"batch_size": 128}, folder=tmp_path
    )
    assert result.status == "finished"
    assert result.model is mine
    assert result.metrics["test"]["accuracy"] > 0.7
    assert result.summary["metrics"] == result.metrics
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_a_module_of_ones_own_trains_without_the_defaults_of_a_kind() -> None:
    graph, rates = hyrt.load("synthetic:tiny"), set()

    def emit(event: Event) -> None:
        if isinstance(event, StepMetrics):
            rates.add(event.lr)

    hyrt.train(graph, Mine(graph.num_features, graph.num_classes), train={"epochs": 1}, emit=emit)
    assert rates == {TrainConfig.model_fields["lr"].default}


@pytest.mark.parametrize("kind", ["graphsage", "gat"])
def test_losses_depend_on_the_seed_only(kind: str) -> None:
    model = {"kind": kind, "dropout": 0.3, "input_dropout": 0.1}
    one = losses(model=model, seed=5)
    assert len(one) == 20
    threads = {"sample_threads": 4, "load_threads": 1, "max_in_flight_steps": 1}
    assert losses(model=model, seed=5) == one
    assert losses(model=model, seed=5, runtime=threads) == one
    assert losses(model=model, seed=5, runtime={"pipelined": False}) == one
    assert losses(model=model, seed=6) != one


def test_two_trainers_do_what_one_does() -> None:
    one = losses(model={"dropout": 0.3})
    two = losses(model={"dropout": 0.3}, devices=["cpu:0", "cpu:1"], split=[37, 91])
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("fanout", [[7], (7,), "7", 7])
def test_a_module_of_ones_own_gets_as_many_blocks_as_there_are_fan_outs(fanout: object) -> None:
    seen: set[int] = set()

    class Nearest(torch.nn.Linear):
        def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.add(len(blocks))
            return super().forward(x[: blocks[-1].num_dst])

    graph = hyrt.load("synthetic:tiny")
    module = Nearest(graph.num_features, graph.num_classes)
    hyrt.train(graph, module, sampler={"fanout": fanout}, train={"epochs": 1})
    assert seen == {1}
    with pytest.raises(ConfigError, match=r"sampler\.fanout"):
        hyrt.train(graph, module, sampler={"fanout": True})


class Overwrites(Mine):
    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        return super().forward(blocks, x.relu_())


def test_a_module_that_would_change_the_features_of_a_whole_graph_is_refused() -> None:
    graph = hyrt.load("synthetic:tiny")
    own = Overwrites(graph.num_features, graph.num_classes)
    with pytest.raises(StageError, match="Overwrites modifies its input in place"):
        hyrt.train(graph, own, full_graph=True, train={"epochs": 2})
    # Of mini-batches it gets a copy.
    hyrt.train(graph, own, train={"epochs": 1})


def test_wrong_calls() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'train\.epochs'"):
        hyrt.train("synthetic:tiny", train={"epoch": 3})
    with pytest.raises(
        ConfigError, match=r"^model must be a kind such as graphsage, .* or a torch module, got 3$"
    ):
        hyrt.train("synthetic:tiny", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model=Linear is a class: pass an instance, Linear\("):
        hyrt.train("synthetic:tiny", torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="parameter 'weight' of LazyLinear is uninitialized"):
        hyrt.train("synthetic:tiny", torch.nn.LazyLinear(4))
    with pytest.raises(ConfigError, match="parameter 'weight' of Linear is uninitialized"):
        hyrt.train("synthetic:tiny", torch.nn.Linear(16, 4, device="meta"))
    with pytest.raises(ConfigError, match="folder=None: pass the path of a run folder"):
        hyrt.load_run(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config cannot be combined with settings as keywords"):
        hyrt.train("synthetic:tiny", config=hyrt.Config(), seed=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"graph": None},
            r"^graph is None: pass a graph from hyrt\.load, or a source that hyrt\.load can open$",
        ),
        (
            {"data": {"source": "cora"}},
            r"^data\.source is set although a graph is passed: remove data\.source$",
        ),
        ({"config": 5}, r"^config must be a hyrt\.Config, got 5$"),
        ({"config": {}}, r"^config must be a hyrt\.Config, got \{\}$"),
        (
            {"config": hyrt.Config().model_copy(update={"train": 5})},
            r"^setting train=5 is invalid, because train is a section",
        ),
        (
            {"config": hyrt.Config().model_copy(update={"seed": "x"})},
            r"^setting seed='x' must be an integer$",
        ),
        (
            {
                "folder": "never-made",
                "train": {"schedule": "LambdaLR", "schedule_options": {"lr_lambda": len}},
            },
            r"^the settings contain <built-in function len>, which cannot be saved .* do not pass folder$",
        ),
        ({"emit": []}, r"^emit must be a function of one event, got \[\]$"),
        ({"full_graph": "no"}, "^full_graph must be True or False, got 'no'$"),
        ({"full_graph": True, "sampler": 5}, "^setting sampler=5 is invalid, because sampler is a section"),
        (
            {"model": torch.nn.Linear(2, 2), "sampler": "full"},
            "^setting sampler='full' is invalid, because sampler is a section",
        ),
        ({"folder": 5}, "^folder=5: pass the path of a new folder$"),
        ({"folder": ""}, "^folder='': pass the path"),
        ({"folder": "a\0b"}, r"^folder='a\\x00b': pass the path"),
    ],
)
def test_arguments_that_would_be_taken_for_something_else(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hyrt.train(**{"graph": "synthetic:tiny", **given})


def test_what_is_set_for_all_of_torch_and_lets_nothing_be_trained() -> None:
    def train() -> None:
        hyrt.train("synthetic:tiny", train={"epochs": 1})

    for context in (torch.no_grad(), torch.inference_mode()):
        with context, pytest.raises(ConfigError, match=r"inside torch\.no_grad\(\) or .*: call it outside$"):
            train()
    try:
        torch.set_default_dtype(torch.float64)
        with pytest.raises(ConfigError, match=r"call torch\.set_default_dtype\(torch\.float32\) first$"):
            train()
        torch.set_default_dtype(torch.float32)
        torch.set_default_device("meta")
        with pytest.raises(ConfigError, match=r"call torch\.set_default_device\(None\) first, and pass dev"):
            train()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"destination": None}, r"^destination=None: pass the path of a \.npz file or a folder$"),
        ({"destination": "a\0b"}, r"^destination='a\\x00b': pass the path"),
        ({"source": "a\0b"}, r"^source='a\\x00b': pass a graph, the path of a dataset, or a name such as "),
        ({"feature_dtype": []}, r"^feature_dtype must be a string, got \[\]: see hyrt data convert --help$"),
        ({"order": 5}, "^order must be a string, got 5"),
        ({"force": "no"}, "^force must be True or False, got 'no'$"),
        ({"reverse": None}, "^reverse must be True or False, got None$"),
    ],
)
def test_what_cannot_be_saved_is_told(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hyrt.save(**{"source": "synthetic:tiny", "destination": tmp_path / "x", **given})
    assert not list(tmp_path.iterdir())


def test_folders_and_files_that_can_be_none() -> None:
    for checkpoint in (None, 5, b"best", ""):
        with pytest.raises(
            ConfigError, match=r"^checkpoint=.*: use best, newest or the path of a checkpoint file$"
        ):
            hyrt.load_run("runs/x", checkpoint=checkpoint)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^model=Linear is a class: pass an instance, Linear\("):
        hyrt.load_run("runs/x", model=torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^folder='x{30,}\.\.\.: pass the path of a run folder"):
        hyrt.load_run("x" * 5000)
    with pytest.raises(DataError, match=r"^x{40}\.\.\. is too long for a path: use a"):
        hyrt.load("x" * 5000)


def test_warnings_are_pythons_at_the_callers_line_where_nobody_hears_events(tmp_path: Path) -> None:
    data, folder, model = tmp_path / "g.npz", tmp_path / "run", {"kind": "gcn", "heads": 8}
    hyrt.save("synthetic:tiny", data)
    with pytest.warns(RunWarning, match=r"model\.heads") as told:
        hyrt.train(
            data, model, train={"epochs": 2}, data={"batch_size": 256}, devices=["cpu:0"], folder=folder
        )
    assert [each.filename for each in told] == [__file__]
    # As `hyrt run` keeps it, with its dataset.
    config = build_config({"data": {"source": str(data)}, "model": model})
    (folder / "config.yaml").write_text(to_yaml(config))
    hyrt.load_run(folder)
    with np.load(data) as file:
        arrays = {**file, "labels": file["labels"][::-1]}
    np.savez(data, **arrays)
    with pytest.warns(
        RunWarning, match=r"g\.npz has other labels or splits than when .*run was trained on it"
    ):
        hyrt.load_run(folder)
    indptr = arrays["indptr"].copy()
    indptr[-1] -= 1
    fewer = {"indptr": indptr, "indices": arrays["indices"][:-1]}
    np.savez(data, **{**arrays, **fewer, "labels": arrays["labels"][::-1]})
    with pytest.warns(RunWarning, match=r"g\.npz has other edges than when .*run was trained on it"):
        hyrt.load_run(folder)
    # Whoever gives a graph knows that it is another.
    hyrt.load_run(folder, graph=data)
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"")
    with pytest.warns(RunWarning, match="Using the checkpoint of step") as told:
        hyrt.load_run(folder, graph=data)
    assert [each.filename for each in told] == [__file__]


def test_a_run_of_an_earlier_version_is_loaded_with_what_new_runs_may_not_have(tmp_path: Path) -> None:
    data, folder = tmp_path / "g.npz", tmp_path / "run"
    hyrt.save("synthetic:tiny", data)
    hyrt.train(data, "gcn", full_graph=True, train={"epochs": 1}, devices=["cpu:0"], folder=folder)
    config = {"data": {"source": str(data)}, "model": {"kind": "gcn"}, "sampler": {"kind": "full"}}
    text = to_yaml(build_config(config)).replace("max_in_flight_steps: 4", "max_in_flight_steps: 2")
    (folder / "config.yaml").write_text(text)
    assert hyrt.load_run(folder).config.runtime.max_in_flight_steps == 2


def accuracy(run: hyrt.TrainedRun) -> float:
    """Of the loaded model on the test vertices, evaluated anew."""
    with contextlib.closing(Workers(1, "test")) as workers:
        found = Evaluator(run.config, run.graph, None).evaluate(run.model, workers)
    return found["test"]["accuracy"]


def test_a_run_is_loaded_from_its_folder(tmp_path: Path) -> None:
    run_hyrt("run", *TINY, "--name", "run", "train.lr=0.02", "train.epochs=4", cwd=tmp_path)
    folder = tmp_path / "runs" / "run"
    run = hyrt.load_run(str(folder))
    assert not run.model.training
    assert (run.config.train.lr, run.config.train.epochs) == (0.02, 4)
    assert run.metrics == summary(folder)["metrics"]
    assert run.graph.num_vertices == hyrt.load("synthetic:tiny").num_vertices
    assert accuracy(run) == pytest.approx(run.metrics["test"]["accuracy"])
    best = summary(folder)["best_epoch"]
    assert run.weights == f"best validation, epoch {best}"
    assert hyrt.load_run(folder, checkpoint="newest").weights.startswith("step ")
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        hyrt.load_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match="found 7 columns, but the run was trained with 16"):
        hyrt.load_run(folder, graph="synthetic:tiny,features=7")


def test_a_training_of_ones_own_module_is_loaded(tmp_path: Path) -> None:
    graph = hyrt.load("synthetic:tiny")
    mine = Mine(graph.num_features, graph.num_classes)
    result = hyrt.train(graph, mine, train={"epochs": 2}, data={"batch_size": 128}, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"does not name its dataset: specify it \(--data, or graph= "):
        hyrt.load_run(tmp_path)
    with pytest.raises(ConfigError, match="contains the checkpoints of another run: choose a new folder"):
        hyrt.train(graph, mine, folder=tmp_path)
    with pytest.raises(ConfigError, match="model must be the torch module that was trained, got 'gcn'"):
        hyrt.load_run(tmp_path, graph=graph, model="gcn")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"if a custom module was trained, pass it as model="):
        hyrt.load_run(tmp_path, graph=graph)
    # What `load` takes besides names, such as the stand-in for a PyG Data.
    data = SimpleNamespace(
        x=torch.zeros(graph.num_vertices, graph.num_features),
        edge_index=torch.tensor([[0], [1]]),
        y=torch.from_numpy(graph.labels),
        **{f"{split}_mask": torch.from_numpy(graph.masks[split]) for split in ("train", "val", "test")},
    )
    fresh = Mine(graph.num_features, graph.num_classes)
    assert hyrt.load_run(tmp_path, graph=data, model=fresh).graph.num_edges == 1
    for given in (graph, "synthetic:tiny"):
        fresh = Mine(graph.num_features, graph.num_classes)
        run = hyrt.load_run(tmp_path, graph=given, model=fresh)
        assert run.model is fresh
        assert run.metrics == result.metrics
        assert run.config.data.batch_size == 128
        for one, other in zip(fresh.parameters(), mine.parameters(), strict=True):
            assert torch.equal(one, other)
    with pytest.raises(CheckpointError, match="do not match Linear: pass a module with the same parameters"):
        hyrt.load_run(tmp_path, graph=graph, model=torch.nn.Linear(3, 4))


def test_what_the_package_shows_of_itself() -> None:
    shown = [name for name in dir(hyrt) if not name.startswith("_")]
    functions = ["from_dgl", "from_pyg", "load", "load_run", "nn", "ops", "save", "train"]
    assert shown == ["Config", "Graph", "TrainResult", "TrainedRun", *functions]
    assert set(hyrt.__all__) <= set(dir(hyrt))
    assert all(getattr(hyrt, name).__doc__ for name in shown)
