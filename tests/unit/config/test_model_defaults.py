"""The settings that a kind of model brings along fill in what the user leaves open, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.config import Config, apply_overrides, build_config, to_yaml
from hyrt.config.settings import ModelConfig, TrainConfig
from hyrt.errors import ConfigError
from hyrt.nn.models.gcn import Gcn

LR = {"graphsage": 1e-2, "gcn": 1e-2, "gin": 3e-3, "gat": 1e-2}


@pytest.mark.parametrize("kind", LR)
def test_a_kind_brings_its_settings(kind: str) -> None:
    assert build_config({"model": {"kind": kind}}).train.lr == LR[kind]


def test_without_a_kind_the_default_kinds_settings_hold() -> None:
    assert build_config({}) == Config() == build_config({"model": {"kind": "graphsage"}})
    assert build_config({}).train.lr == LR["graphsage"]


@pytest.mark.parametrize("settings", [{"train": {"lr": 0.5}}, {"train": TrainConfig(lr=0.5)}])
def test_what_the_user_says_stays(settings: dict[str, Any]) -> None:
    config = Config.model_validate({"model": ModelConfig(kind="gcn"), **settings})
    assert config.train.lr == 0.5
    assert config.model.dropout == Gcn.defaults["model.dropout"], "what the user left open is filled in"


def test_a_module_of_the_users_own_has_the_plain_defaults() -> None:
    config = build_config({"train": {"epochs": 3}}, custom_model=True)
    plain = TrainConfig.model_fields
    assert config.train == TrainConfig(epochs=3)
    assert (config.train.lr, config.train.weight_decay) == (
        plain["lr"].default,
        plain["weight_decay"].default,
    )


def test_a_value_equal_to_the_class_default_is_still_the_users() -> None:
    config = build_config(apply_overrides({}, ["model.kind=gcn", "model.dropout=0", "train.lr=0.003"]))
    assert (config.model.dropout, config.train.lr) == (0.0, 0.003)


def test_a_written_config_reads_back_whatever_a_kind_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    written = to_yaml(build_config({"model": {"kind": "gcn"}}))
    monkeypatch.setattr(Gcn, "defaults", {"train.lr": 0.25})
    assert build_config(yaml.safe_load(written)).train.lr == LR["gcn"]


@pytest.mark.parametrize("name", ["train.lrr", "trian.lr", "lr"])
def test_a_name_that_no_setting_has_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gcn, "defaults", {name: 0.25})
    with pytest.raises(ConfigError, match="unknown setting"):
        build_config({"model": {"kind": "gcn"}})


@pytest.mark.parametrize("settings", [{"model": 3}, {"train": 3}, {"model": {"kind": 3}}])
def test_wrong_sections_are_told_as_without_defaults(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"setting (model|train)"):
        build_config(settings)


@given(st.integers(1, 10_000))
def test_epochs_by_default_make_enough_steps(steps_per_epoch: int) -> None:
    epochs = TrainConfig().num_epochs(steps_per_epoch)
    assert epochs >= 5
    assert epochs == 5 or (epochs - 1) * steps_per_epoch < 400 <= epochs * steps_per_epoch
    assert TrainConfig(epochs=3).num_epochs(steps_per_epoch) == 3
    assert epochs == max(5, math.ceil(400 / steps_per_epoch))


@pytest.mark.parametrize("kind", ["rgcn", "rsage", "hgt", "gcn", "gat", "gin"])
@pytest.mark.parametrize("decoder", ["dot", "distmult", "mlp"])
@pytest.mark.parametrize("given_decay", [None, 0.25])
def test_a_perceptron_over_links_is_not_decayed_unless_the_user_says_so(
    kind: str, decoder: str, given_decay: float | None
) -> None:
    train = {"objective": "links", **({} if given_decay is None else {"weight_decay": given_decay})}
    config = build_config({"model": {"kind": kind}, "train": train, "links": {"decoder": decoder}})
    usual = build_config({"model": {"kind": kind}}).train
    wanted = (0.0 if decoder == "mlp" else usual.weight_decay) if given_decay is None else given_decay
    assert (config.train.weight_decay, config.train.lr) == (wanted, usual.lr)
