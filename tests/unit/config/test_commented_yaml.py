from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hyrt.config import Config, apply_overrides, build_config, load_settings
from hyrt.config.commented_yaml import commented_yaml

SETTINGS = [
    [],
    ["model.kind=gat", "sampler.kind=saint", "split=[1,1]", "devices=[cpu:0,cpu:1]", "sampler.units=2"],
    ["sampler.kind=full", "fullgraph.host_memory=512MiB", "data.source='1e5'"],
    # Of a kind of model that has other defaults than the settings themselves.
    ["model.kind=gin", "model.norm=none"],
    ["model.kind=gat", "model.attention_dropout=0", "model.dropout=0", "train.weight_decay=0"],
    ["train.optimizer_options={eps: 1e-7}", "data.cache=20%", "runtime.device_memory_gib=0.5"],
]


def uncommented(text: str) -> str:
    """Every setting of the file as a setting; the lines of prose, which end no `key: value`, left out."""
    lines, names = [], names_of(Config())
    for line in text.splitlines():
        bare = line.replace("# ", "", 1) if line.lstrip().startswith("#") else line
        if bare.strip().partition(":")[0] in names:
            lines.append(bare)
    return "\n".join(lines)


def names_of(section: BaseModel) -> set[str]:
    names = set(type(section).model_fields)
    for name in type(section).model_fields:
        value = getattr(section, name)
        names |= names_of(value) if isinstance(value, BaseModel) else set()
    return names | {"units", "roots", "length"}


@pytest.mark.parametrize("overrides", SETTINGS, ids=str)
def test_it_reads_back(overrides: list[str], tmp_path: Any) -> None:
    config = build_config(apply_overrides({}, overrides))
    for shown in ([], ["train.lr", "data.source", "seed"]):
        file = tmp_path / "settings.yaml"
        file.write_text(commented_yaml(config, shown))
        assert build_config(load_settings(file)) == config


def test_every_comment_is_a_setting_with_its_value_and_meaning(tmp_path: Any) -> None:
    config = Config()
    text = commented_yaml(config, [])
    file = tmp_path / "all.yaml"
    file.write_text(uncommented(text))
    assert load_settings(file) == yaml.safe_load(yaml.safe_dump(config.model_dump()))
    prose = " ".join(" ".join(line.strip("# ") for line in text.splitlines()).split())
    for section in (config, config.data, config.train, config.sampler, config.distributed):
        for field in type(section).model_fields.values():
            assert " ".join((field.description or "").split()) in prose


def test_what_is_shown_is_a_setting_though_it_is_the_default() -> None:
    lines = commented_yaml(Config(), ["train.lr"]).splitlines()
    assert "  lr: 0.01" in lines
    assert "  # patience: 0" in lines
    assert "seed: 0" not in lines
    assert "# seed: 0" in lines
