"""Wrong calls of public functions: a message of one line with a remedy, and a short traceback."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import hyrt
from hyrt.config import Config
from hyrt.config.load import ConfigSections
from hyrt.errors import ConfigError, DataError, DataWarning, HyrtError, StageError, warn_user

GRAPH = hyrt.load("synthetic:tiny")


class WrongWidth(torch.nn.Module):
    """A module for rows of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.product = torch.nn.Linear(5, 4)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        return self.product(x[: blocks[-1].num_dst])


class Misspelling(torch.nn.Module):
    """A module that calls hyrt wrongly, while it is trained or while it is evaluated."""

    def __init__(self, is_wrong_in_training: bool) -> None:
        super().__init__()
        self.is_wrong_in_training = is_wrong_in_training
        self.product = torch.nn.Linear(GRAPH.num_features, 4)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        if self.training == self.is_wrong_in_training:
            GRAPH.split("tset")
        return self.product(x[: blocks[-1].num_dst])


def wrongly(function: Callable[..., Any], *args: Any, **named: Any) -> HyrtError:
    with pytest.raises(HyrtError) as caught:
        function(*args, **named)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hyrt.train(GRAPH, "gcn", model={"hidden": 8}),  # type: ignore[misc]
            "hyrt.train: model is passed twice, as 'gcn' and as model={'hidden': 8}: pass only one, such as "
            "model={'kind': 'gcn', 'hidden': 8}",
        ),
        (
            lambda: hyrt.load(np.eye(2), source="cora"),  # type: ignore[misc]
            "hyrt.load: source is passed twice, as array([[1., 0.], [0., 1.]]) and as source='cora': "
            "pass it only once",
        ),
        (
            lambda: hyrt.train(GRAPH, "gcn", {"epochs": 5}),  # type: ignore[misc]
            "hyrt.train accepts only graph, model as positional arguments, but 3 were passed: pass the "
            "others by name, see help(hyrt.train)",
        ),
        (
            lambda: hyrt.load("cora", normalise="row"),  # type: ignore[call-arg]
            "hyrt.load has no argument 'normalise': did you mean 'normalize'?",
        ),
        (
            lambda: hyrt.load_run("runs/mine", chekpoint="newest"),  # type: ignore[call-arg]
            "hyrt.load_run has no argument 'chekpoint': did you mean 'checkpoint'?",
        ),
        (
            lambda: hyrt.save(GRAPH),  # type: ignore[call-arg]
            "hyrt.save: missing a required argument: 'destination': see help(hyrt.save)",
        ),
        (
            lambda: hyrt.train(GRAPH, "gcn", trian={}),  # type: ignore[call-arg]
            "unknown setting 'trian': did you mean 'train'?",
        ),
        (
            lambda: hyrt.train(GRAPH, config=Config().model_copy(update={"trian": {}})),
            "unknown setting 'trian': see `hyrt run --print-config` for all settings",
        ),
        (
            lambda: hyrt.train(GRAPH, config=Config(train=Config().train.model_copy(update={"epoch": 1}))),
            "unknown setting 'train.epoch': see `hyrt run --print-config` for all settings",
        ),
    ],
)
def test_a_wrong_call_names_the_remedy(call: Callable[[], Any], message: str) -> None:
    assert str(wrongly(call)) == message


def test_errors_show_no_frames_of_hyrt(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(error: BaseException) -> list[str]:
        return "".join(traceback.format_exception(error)).splitlines()

    misspelt = shown(wrongly(hyrt.train, GRAPH, "gnc"))
    assert len(misspelt) <= 12
    failure = wrongly(hyrt.train, GRAPH, WrongWidth(), train={"epochs": 1})
    assert isinstance(failure, StageError)
    lines = shown(failure)
    assert len(lines) <= 24
    # The traceback has the wrong line of the user, and the cause is the error of torch.
    assert any("return self.product" in line for line in lines)
    assert isinstance(failure.__cause__, RuntimeError)
    assert not [line for line in lines if "/hyrt/pipeline/" in line or "/torch/" in line]
    monkeypatch.setenv("HYRT_TRACEBACK", "1")
    assert any("/hyrt/pipeline/" in line for line in shown(wrongly(hyrt.train, GRAPH, WrongWidth())))


@pytest.mark.parametrize("is_wrong_in_training", [True, False])
def test_hyrts_own_errors_keep_their_causes_and_the_users_line(is_wrong_in_training: bool) -> None:
    error = wrongly(hyrt.train, GRAPH, Misspelling(is_wrong_in_training), train={"epochs": 1})
    assert isinstance(error, StageError) == is_wrong_in_training
    cause = error.__cause__ if is_wrong_in_training else error
    assert isinstance(cause, DataError)
    assert "no split 'tset'" in str(cause)
    lines = [frame.line for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == __file__]
    assert lines[-1] == 'GRAPH.split("tset")'
    assert "/hyrt/pipeline/" not in "".join(traceback.format_exception(error))


def _load(path: Path) -> hyrt.Graph:
    return hyrt.load(path)


def test_warnings_are_at_the_users_line_also_if_a_library_calls_hyrt(tmp_path: Path) -> None:
    hyrt.save(GRAPH, tmp_path / "tiny.npz")
    with np.load(tmp_path / "tiny.npz") as arrays:
        np.savez(tmp_path / "more.npz", **arrays, remarks=np.zeros(3))
    library: dict[str, Any] = {"__name__": "library"}
    path = f"{sysconfig.get_path('purelib')}/library.py"
    exec(compile("def call(function, *args):\n    return function(*args)\n", path, "exec"), library)
    calls: list[Callable[[Path], Any]] = [
        _load,
        lambda path: library["call"](_load, path),
        lambda path: library["call"](hyrt.load, path),
    ]
    for call in calls:
        with pytest.warns(DataWarning, match="key 'remarks' is not read") as caught:
            call(tmp_path / "more.npz")
        assert [(warning.filename, "hyrt.load" in _line(warning)) for warning in caught] == [(__file__, True)]


def _line(warning: warnings.WarningMessage) -> str:
    return linecache.getline(warning.filename, warning.lineno)


def test_type_checkers_know_all_sections() -> None:
    assert set(get_type_hints(ConfigSections)) == Config.model_fields.keys() - {"model"}


def test_a_folder_may_be_text(tmp_path: Path) -> None:
    settings: Any = {"train": {"epochs": 1}, "balance": {"predict": False}}
    hyrt.train(GRAPH, "gcn", folder=str(tmp_path / "run"), **settings)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert isinstance(wrongly(hyrt.train, GRAPH, folder=3), ConfigError)


@pytest.mark.parametrize("letters", ["\n", "\r", "\x1b[31m", "\u2028", "\x00"])
@pytest.mark.parametrize(
    "call",
    [
        lambda name: hyrt.load(name),
        lambda name: hyrt.load(f"{name}.npz"),
        lambda name: hyrt.load(f"synthetic:{name}"),
        lambda name: hyrt.load(GRAPH, normalize=name),
        lambda name: hyrt.save(GRAPH, f"/{name}/a.npz"),
        lambda name: hyrt.save(name, "a.npz"),
        lambda name: hyrt.save(GRAPH, "a.npz", order=name),
        lambda name: hyrt.load_run(name),
        lambda name: hyrt.train(GRAPH, name),
        lambda name: hyrt.train(name),
        lambda name: hyrt.train(GRAPH, devices=name),
        lambda name: hyrt.train(GRAPH, sampler={"kind": name}),
        lambda name: hyrt.train(GRAPH, sampler={name: 1}),
        lambda name: hyrt.train(GRAPH, train={"optimizer": name}),
        lambda name: hyrt.train(GRAPH, **{name: {}}),
        lambda name: GRAPH.split(name),
    ],
)
def test_names_do_not_break_the_line_of_a_refusal(call: Callable[[str], Any], letters: str) -> None:
    error = wrongly(call, f"a{letters}b")
    assert str(error).isprintable()


def test_warnings_are_of_one_line() -> None:
    with pytest.warns(DataWarning, match=r"^a\\nb: key 'c\\x1b' is not read$"):
        warn_user("a\nb: key 'c\x1b' is not read", DataWarning)
