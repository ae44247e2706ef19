"""Settings: YAML round trips, overrides, and errors that name the key."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.validation import StrictYaml

from hyrt.config import Config, apply_overrides, build_config, load_settings, to_yaml
from hyrt.config.command_line import (
    check_same_training,
    full_graph_override,
    make_paths_absolute,
    new_config,
    option_overrides,
    resumed_config,
    split_arguments,
)
from hyrt.config.commented_yaml import commented_yaml
from hyrt.config.load import flatten_settings
from hyrt.config.validation import RENAMED_SETTINGS, known_keys
from hyrt.config.validation import to_plain_values as plain_settings
from hyrt.errors import ConfigError, SettingWarning
from hyrt.sampling.settings.saint_settings import SaintSettings

counts = st.integers(1, 2**31 - 1)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
yaml_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.text(
    "0123456789-+._eExbn: ", max_size=8
)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | yaml_text
options = st.dictionaries(yaml_text, plain | st.lists(plain, max_size=3), max_size=3)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    layers = draw(st.integers(1, 4))
    heads = draw(st.integers(1, 8))
    shares = draw(st.none() | st.lists(st.integers(0, 500), min_size=1, max_size=4).filter(any))
    schedule = draw(st.none() | yaml_text)
    fanout = st.lists(st.just(-1) | st.integers(1, 50), min_size=layers, max_size=layers)
    return build_config(
        {
            "seed": draw(st.integers(0, 2**63 - 1)),
            "data": {"source": draw(yaml_text), "batch_size": sum(shares) if shares else draw(counts)},
            "sampler": {"fanout": draw(st.none() | fanout)},
            "model": {
                "kind": draw(st.sampled_from(["graphsage", "gcn", "gin", "gat"])),
                "layers": layers,
                "heads": heads,
                "hidden": heads * draw(st.integers(1, 64)),
                "dropout": draw(st.floats(0, 1, exclude_max=True)),
                "residual": draw(st.booleans()),
                "norm": draw(st.sampled_from(["none", "layer"])),
            },
            "train": {
                "optimizer": draw(yaml_text),
                "lr": draw(st.floats(0, 1e30, exclude_min=True)),
                "optimizer_options": draw(options),
                "schedule": schedule,
                "schedule_options": {} if schedule is None else draw(options),
            },
            "evaluate": {"memory_gib": draw(st.floats(min_value=0, exclude_min=True, max_value=1e6))},
            "devices": [f"cpu:{i}" for i in range(len(shares))] if shares else ["cpu"],
            "split": shares,
        }
    )


@settings(max_examples=150, deadline=None)
@given(configs())
def test_yaml_round_trip(config: Config) -> None:
    written = to_yaml(config)
    assert build_config(yaml.load(written, StrictYaml)) == config
    assert build_config(yaml.safe_load(written)) == config


@settings(max_examples=100, deadline=None)
@given(configs(), st.sampled_from([[], ["train.lr", "data.source"]]))
def test_a_file_to_edit_comes_back(config: Config, shown: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hyrt.yaml"
        file.write_text(commented_yaml(config, shown), encoding="utf-8")
        assert build_config(load_settings(file)) == config


@settings(max_examples=30, deadline=None)
@given(config=configs())
def test_file_round_trip(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert build_config(load_settings(path)) == config


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    config = build_config({"data": {"source": "1E0"}, "train": {"optimizer": "2e-3"}})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert build_config(load_settings(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_former_names_of_settings_stay_readable(tmp_path: Path, old: str, new: str) -> None:
    (section, old_key), new_key = old.split("."), new.split(".")[1]
    value = {"feature_dtype": "int8", "comm_dtype": "float16", "shared_memory_features": False}.get(
        new_key, 2
    )
    expected = build_config({section: {new_key: value}})
    assert expected != build_config({})
    text = to_yaml(expected).replace(f" {new_key}:", f" {old_key}:")
    (tmp_path / "old.yaml").write_text(text)
    # A file of an earlier version loads without a word; warnings are errors in these tests.
    assert new_config(tmp_path / "old.yaml", []) == expected
    assert build_config({section: {old_key: value}}, lenient=True) == expected
    assert build_config({section: {old_key: value, new_key: value}}) == expected
    with pytest.raises(ConfigError, match=f"{old} is the former name of {new}, and both are set"):
        build_config({section: {old_key: value, new_key: 3}})
    entry = f"{old}={str(value).lower()}"
    with pytest.warns(SettingWarning, match=f"{old} was renamed: use {new}=") as warned:
        file, overrides = split_arguments([entry])
    assert (file, overrides, len(warned)) == (None, [f"{new}={str(value).lower()}"], 1)
    assert new_config(None, overrides) == new_config(None, [entry]) == expected
    # An override replaces the value of a file, whichever name either of them uses.
    default = to_yaml(build_config({})).replace(f" {new_key}:", f" {old_key}:")
    (tmp_path / "default.yaml").write_text(default)
    assert new_config(tmp_path / "default.yaml", overrides) == expected


def test_empty_settings_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert build_config(load_settings(tmp_path / "empty.yaml")) == Config()
    assert Config().fanouts == [25, 10]
    assert build_config({"model": {"layers": 4}}).fanouts == [25, 10, 10, 10]
    assert build_config({"sampler": {"fanout": [5, -1]}}).fanouts == [5, -1]


@pytest.mark.parametrize(
    ("entry", "keys", "value"),
    [
        ("train.epochs=7", ("train", "epochs"), 7),
        ("train.lr=1e-3", ("train", "lr"), 1e-3),
        ("train.lr=1.5E-3", ("train", "lr"), 1.5e-3),
        ("data.source=synthetic:community", ("data", "source"), "synthetic:community"),
        ("data.source=a=b.npz", ("data", "source"), "a=b.npz"),
        ("sampler.fanout=25,10", ("sampler", "fanout"), [25, 10]),
        ("sampler.fanout=25, -1", ("sampler", "fanout"), [25, -1]),
        ("split=1024", ("split",), [1024]),
        ("model.kind=GCN", ("model", "kind"), "gcn"),
        ("model.kind=GraphSAGE", ("model", "kind"), "graphsage"),
        ("sampler.kind=SAINT", ("sampler", "kind"), "saint"),
        ("train.objective=Classification", ("train", "objective"), "classification"),
        ("sampler.fanout=[10, -1]", ("sampler", "fanout"), [10, -1]),
        ("sampler.fanout=null", ("sampler", "fanout"), None),
        ("model.residual=true", ("model", "residual"), True),
        (
            "train.optimizer_options={betas: [0.8, 0.9]}",
            ("train", "optimizer_options"),
            {"betas": [0.8, 0.9]},
        ),
        ("train.optimizer_options.eps=1e-6", ("train", "optimizer_options"), {"eps": 1e-6}),
        ("devices=[cpu, 'cuda:0']", ("devices",), ["cpu", "cuda:0"]),
        ("seed=3", ("seed",), 3),
    ],
)
def test_overrides(entry: str, keys: tuple[str, ...], value: Any) -> None:
    config: Any = build_config(apply_overrides({}, [entry]))
    for key in keys:
        config = getattr(config, key)
    assert config == value
    assert type(config) is type(value)


def test_overrides_keep_their_neighbours_and_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model:\n  kind: gat\n  hidden: 64\n")
    config = build_config(apply_overrides(load_settings(path), ["model.hidden=16", "train.epochs=2"]))
    assert (config.model.kind, config.model.hidden, config.train.epochs) == ("gat", 16, 2)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["train.epochs=3", "train.epochs=5"], "train.epochs is set twice: using 5, not 3"),
        (["train={lr: 1}", "train.lr=2"], "train.lr is set twice: using 2, not 1"),
        (
            ["train.lr=2", "train={epochs: 1}"],
            'train={"epochs": 1} replaces train.lr=2, which is also set',
        ),
        (
            [*option_overrides(model__kind="gcn"), "model.kind=gat"],
            "model.kind is set twice: using gat, not gcn",
        ),
        (
            [*option_overrides(runtime__trace=True), "runtime.trace=false"],
            "runtime.trace is set twice: using false, not true",
        ),
    ],
)
def test_a_setting_that_is_given_twice_is_warned_of(entries: list[str], message: str) -> None:
    with pytest.warns(SettingWarning, match=f"^{re.escape(message)}$"):
        new_config(None, entries)


def test_what_is_given_twice_alike_or_beside_its_neighbours_is_taken() -> None:
    entries = ["train={epochs: 1, lr: 2}", "train.lr=2", "train.patience=3", "model.kind=gcn"]
    config = new_config(None, [*option_overrides(model__kind="gcn"), *entries])
    assert (config.train.epochs, config.train.lr, config.train.patience) == (1, 2, 3)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("train.epoch=5", "unknown setting 'train.epoch': did you mean 'train.epochs'?"),
        ("epochs=5", "unknown setting 'epochs': did you mean 'train.epochs'?"),
        ("train.foo=1", "unknown setting 'train.foo': see `hyrt run --print-config` for all settings"),
        ("model.lr=1", "unknown setting 'model.lr': did you mean 'train.lr'?"),
        ("train.epcohs=1", "unknown setting 'train.epcohs': did you mean 'train.epochs'?"),
        ("modle.hidden=5", "unknown setting 'modle"),
        ("xyzzy=5", "unknown setting 'xyzzy': see `hyrt run --print-config` for all"),
        ("train.epochs.more=5", "train.epochs"),
        ("train.epochs", "write settings as key.path=value"),
        ("=5", "write settings as key.path=value"),
        ("train.epochs=[1", "as YAML"),
        ("train.epochs=0", "setting train.epochs=0 must be at least 1"),
        ("train.epochs=many", "setting train.epochs='many' must be an integer$"),
        ("train.epochs=1.5", "setting train.epochs=1.5 must be an integer$"),
        ("train.lr=1e300", r"setting train.lr=1e\+300 must be at most 1e\+30"),
        ("model.layers=100000", "setting model.layers=100000 must be at most 256"),
        (
            "sampler.fanout=99999999999999999999,1",
            "sampler.fanout has 99999999999999999999, which is not below",
        ),
        ("train.lr=0", "setting train.lr=0 must be greater than 0"),
        (
            "sampler.fanout[0]=3",
            r"^unknown setting 'sampler\.fanout\[0\]': did you mean 'sampler\.fanout'\?$",
        ),
        ("[a]=1", r"^unknown setting '\[a\]': see `hyrt run --print-config` for all settings$"),
        ("model.options={a: 1}", r"is invalid for model.kind=graphsage \(.*\): remove model.options$"),
        ("sampler.kind=!!binary aGk=", "unknown sampler.kind 'hi'"),
        ("train.lr=.nan", "setting train.lr=nan must be a finite number$"),
        ("model.dropout=1", "setting model.dropout=1 must be less than 1"),
        ("model.kind=gnc", "unknown model.kind 'gnc' .*: the known ones are .*gat, gcn,"),
        (
            "model=gcn",
            "model='gcn' is invalid, because model is a section: set its settings, such as model.kind=gcn$",
        ),
        ("train=3", "train=3 is invalid, because train is a section: .* such as train.epochs=...$"),
        (
            "sampler=saint",
            "sampler='saint' is invalid, because sampler is a section: .* such as sampler.kind=saint$",
        ),
        ("sampler.fanout=25,x", r"setting sampler\.fanout\.1='x' must be an integer$"),
        ("sampler.fanout=25,", r"setting sampler\.fanout\.1='' must be an integer$"),
        ("sampler.fanout=true", "setting sampler.fanout=True must be a list such as"),
        ("model.kind=GCNN", "unknown model.kind 'GCNN'"),
        ("train={3: 4}", "setting train.3 has the key 3: names of settings must be strings"),
        ("devices=[]", r"setting devices=\[\] must have at least 1"),
        ("balance.policy=fastest", r"setting balance.policy='fastest' must be .*'static'"),
        ("balance.polic=static", "did you mean 'balance.policy'"),
        ("split=[-1]", r"setting split\.0=-1 must be at least 0"),
        (
            "sampler.fanout=[5]",
            r"sampler\.fanout=\[5\] does not match model\.layers=2: set one fan-out per layer",
        ),
        ("sampler.fanout=[5, 0]", "sampler.fanout is invalid: set each entry"),
        ("sampler.fanout=[5, -2]", "sampler.fanout is invalid: set each entry"),
        ("devices=3", "setting devices=3 must be device names such as cpu,opencl:0"),
        ("devices=[cpu, 2]", r"devices=\['cpu', 2\] must be device names"),
        ("devices=null", "setting devices=None must be device names"),
        ("split=[5, 6]", "split has 2 numbers for 1 device: "),
        ("split=[5]", "split adds up to 5, but must add up to data.batch_size=1024"),
    ],
)
def test_wrong_settings(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_config(apply_overrides({}, [entry]))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value) or "YAML" in str(caught.value)


def test_checks_across_settings() -> None:
    with pytest.raises(ConfigError, match=r"model\.hidden=10 is not a multiple of model\.heads=4"):
        build_config({"model": {"kind": "gat", "hidden": 10}})
    saint = {"sampler": {"kind": "saint", "units": 3}, "devices": ["cpu", "cpu"]}
    assert build_config(saint | {"split": [1, 2]}).split == [1, 2]
    with pytest.raises(ConfigError, match=r"split adds up to 1024, but must add up to sampler\.units=3"):
        build_config(saint | {"split": [512, 512]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"batch_size": 512}}, r"data\.batch_size=512 has no effect .*: remove data\.batch_size$"),
        (
            {"sampler": {"kind": "full", "fanout": [5, 5]}},
            r"sampler\.fanout has no effect .*: remove sampler\.fanout, or ",
        ),
        ({"sampler": {"kind": "full", "roots": 5}}, r"sampler\.roots is a setting of sampler\.kind=saint"),
        ({"devices": ["cpu", "opencl"], "split": [1, 0]}, "split has no effect .*, or set device shares"),
        ({"split": [1024]}, "split adds up to 1024, but must add up to the units of a full-graph step=1"),
    ],
)
def test_settings_that_do_not_go_with_the_full_graph(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"sampler": {"kind": "full"}, **settings})


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [("512MiB", 2**29), ("1.5 GiB", 3 * 2**29), ("2048KiB", 2**21), (2**20, 2**20), (None, None)],
)
def test_sizes_are_written_with_their_unit(given: Any, num_bytes: int | None) -> None:
    settings = {"sampler": {"kind": "full"}, "fullgraph": {"host_memory": given}}
    assert build_config(settings).fullgraph.host_memory == num_bytes


@pytest.mark.parametrize(
    "given", ["9" * 400 + "GiB", "٥١٢MiB", "4", 4, "512", 0.5, "5 apples", True, "0.5MiB", "512 MB", -(2**30)]
)
def test_sizes_without_a_unit_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"fullgraph\.host_memory=.*must be a size .*such as 512MiB or"):
        build_config({"sampler": {"kind": "full"}, "fullgraph": {"host_memory": given}})


def test_budgets_of_whole_graphs_are_refused_for_sampled_ones() -> None:
    with pytest.raises(ConfigError, match=r"fullgraph\.host_memory has no effect with sampler"):
        build_config({"fullgraph": {"host_memory": "1GiB"}})


@pytest.mark.parametrize(
    "given", ["fullgraph.chunks=4", "fullgraph.device_memory=64MiB", "fullgraph.order=row-column"]
)
def test_chunks_are_asked_for_of_the_full_graph_alone(given: str) -> None:
    key = given.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{key} has no effect with .*=neighbor: specify --full-graph"):
        build_config(apply_overrides({}, [given]))
    assert build_config(apply_overrides({}, [given, "sampler.kind=full"])).fullgraph.uses_chunks
    assert not build_config({"sampler": {"kind": "full"}}).fullgraph.uses_chunks


def test_a_fanout_of_the_wrong_length_is_refused_for_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"sampler\.fanout has no effect with sampler\.kind=full"):
        build_config({"sampler": {"kind": "full", "fanout": [3]}})


def test_the_full_graph_leaves_settings_of_sampled_evaluations_alone() -> None:
    sampled = {"evaluate": {"mode": "sampled"}, "data": {"batch_size": 512}}
    config = build_config({"sampler": {"kind": "full", "fanout": [5, 5]}, **sampled})
    assert (config.units_per_step, config.fanouts) == (1, [5, 5])
    for plain in ({}, {"split": [1]}, {"devices": "auto"}, {"devices": "cpu=1"}):
        config = build_config({"sampler": {"kind": "full"}, **plain})
        # All settings, as a run keeps them, are settings again.
        assert build_config(config.model_dump()) == config
    build_config({"sampler": {"kind": "full", "fanout": [5]}, "model": {"layers": 1}}, custom_model=True)


def test_full_graph_is_short_for_the_kind_of_sampler() -> None:
    assert full_graph_override([]) == full_graph_override(["sampler.kind=full"]) == "sampler.kind=full"
    with pytest.raises(ConfigError, match=r"sampler\.kind=saint: remove one"):
        full_graph_override(["train.lr=1", "sampler.kind=saint"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "must contain settings as `key: value`, but contains a list$"),
        (b"seed\n", "must contain settings as `key: value`, but contains plain text$"),
        (b"7\n", "must contain settings as `key: value`, but contains only the value 7$"),
        (b"a: [1\n", " is not valid YAML: line 2, column 1: the text ends inside a list$"),
        (b"a: {b: 1\n", " is not valid YAML: line 2, column 1: the text ends inside a mapping$"),
        (b"a: 'b\n", " is not valid YAML: line 2, column 1: the text ends inside a quoted string$"),
        (b"a: b: c\n", " is not valid YAML: line 1, column 5: mapping values are not allowed here$"),
        (b"a: " + b"9" * 5000, " cannot be read as YAML: Exceeds the limit "),
        (b"\xff\xfe\xfa", " is not UTF-8 text: save it as UTF-8$"),
        (b"a:\n\tb: 1\n", " is not valid YAML: line 2, column 1: tabs are not allowed: indent with spaces$"),
        (b"a: 1\n---\nb: 2\n", ": line 2, column 1: a second document starts here: remove this line, or "),
        (b"a: 1\nb: 2\na: 3\n", ": line 3, column 1: duplicate key 'a': keep only one$"),
    ],
)
def test_files_that_hold_no_settings(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"bad.yaml.*{message}"):
        load_settings(path)


def test_of_a_value_that_a_few_lines_make_huge_the_beginning_is_shown(tmp_path: Path) -> None:
    """Nine of nine of nine ...: its whole text would be tens of thousands of characters."""
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 4)]
    path = tmp_path / "huge.yaml"
    path.write_text("\n".join([*lines, "train: {epochs: *a3}"]))
    with pytest.raises(ConfigError, match=r"setting train\.epochs=\[\[.* must be an integer$") as caught:
        build_config({"train": load_settings(path)["train"]})
    assert len(str(caught.value)) < 400


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"none\.yaml cannot be read: No such file.*: use a path that exists"
    ):
        load_settings(tmp_path / "none.yaml")


def test_yaml_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text(f"seed: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    with pytest.raises(ConfigError, match="not valid YAML: line 1, column 7: could not determine"):
        load_settings(path)
    assert not (tmp_path / "made").exists()


def test_a_config_does_not_change() -> None:
    config = Config()
    with pytest.raises(
        ConfigError, match=r"^Config\.seed cannot be changed, because settings are immutable: set"
    ):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"^TrainConfig\.epochs cannot be changed"):
        config.train.epochs = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"^TrainConfig\.epochs cannot be changed"):
        del config.train.epochs
    config.train.optimizer_options["mine"] = 1
    assert Config().train.optimizer_options == {}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"epochs": "x"}}, "^setting train.epochs='x' must be an integer$"),
        ({"trian": {}}, "^unknown setting 'trian': did you mean 'train'"),
        ({"train": 5}, "^setting train=5 is invalid, because train is a section: "),
        ({"seed": True}, "^setting seed=True must be a number, not true or false$"),
        ({"split": [5]}, "^split adds up to 5, but must add up to data.batch_size=1024$"),
        ({"sampler": {"fanout": {5, 6}}}, "must be a list such as .*, because a set has no order$"),
    ],
)
def test_settings_made_in_python_are_refused_in_our_words(sections: dict[str, Any], message: str) -> None:
    for make in (Config, lambda **given: Config.model_validate(given)):
        with pytest.raises(ConfigError, match=message):
            make(**sections)


def test_numbers_and_paths_of_python_are_taken() -> None:
    config = Config(
        seed=np.int32(3),
        data={"source": Path("a/b.npz"), "batch_size": torch.tensor(64)},
        sampler={"fanout": np.array([5, 4])},
        train={"epochs": np.int64(2), "lr": np.float32(0.5), "optimizer_options": {"betas": (0.5, 0.9)}},
    )
    assert (config.seed, config.data.source, config.data.batch_size) == (3, "a/b.npz", 64)
    assert (config.fanouts, config.train.epochs, config.train.lr) == ([5, 4], 2, 0.5)
    assert build_config(yaml.safe_load(to_yaml(config))) == config
    with pytest.raises(ConfigError, match=r"^setting seed=True must be a number"):
        Config(seed=np.bool_(True))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("08", 8),
        ("-010", -10),
        ("1_000", 1000),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("0b1", "0b1"),
        ("2024-01-02", "2024-01-02"),
        ("1e3", 1000.0),
        ("-.5e3", -500.0),
        (".inf", math.inf),
    ],
)
def test_numbers_are_decimal_and_dates_are_texts(text: str, value: Any) -> None:
    """By YAML 1.1, `--epochs 010` would train for 8 epochs, and `1:30` for 90."""
    found = apply_overrides({}, [f"key={text}"])["key"]
    assert (found, type(found)) == (value, type(value))


def test_what_is_given_several_times_is_made_once_and_what_holds_itself_is_refused() -> None:
    many: Any = ["x"]
    for _ in range(40):
        many = [many, many]
    found = plain_settings({"options": many, "again": (many,)})
    assert found["options"][0] is found["options"][1]
    assert found["options"] is found["again"][0]
    looped: dict[str, Any] = {}
    looped["a"] = [looped]
    with pytest.raises(ConfigError, match="a value in the settings contains itself"):
        Config(train={"optimizer_options": looped})


def test_aliases_that_stand_for_more_than_fits_are_refused_wherever_yaml_is_read(tmp_path: Path) -> None:
    lines = [
        "a: &a [1]",
        *(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in pairwise("abcdefghij")),
    ]
    says = r"aliases \(\*a\) expand to more than 100,000 values: write the values out in full"
    file = tmp_path / "run.yaml"
    file.write_text("model:\n  options:\n" + "".join(f"    {line}\n" for line in lines))
    with pytest.raises(ConfigError, match=rf"run\.yaml is not valid YAML: line 1, column 1: {says}"):
        load_settings(file)
    with pytest.raises(ConfigError, match=rf"the value of .* cannot be read.*{says}"):
        apply_overrides({}, [f"model.options={{{', '.join(lines)}}}"])
    with pytest.raises(ConfigError, match=rf"the checkpoint is not valid YAML: .*{says}"):
        check_same_training(Config(), "\n".join(lines))


def test_settings_are_given_by_section() -> None:
    with pytest.raises(
        ConfigError, match=r"accepts no positional arguments, got 3: .*train=\{'epochs': 5\}$"
    ):
        Config(3)


@pytest.mark.parametrize(
    "weights",
    [
        "[1,x]",
        "[1,[2]]",
        "{0: 1}",
        "balancd",
        "[1,-2]",
        "[0,0]",
        "[1,.inf]",
        "[1,.nan]",
        "[]",
        "true",
        "[true,1]",
        "null",
        "[1," + "9" * 400 + "]",
    ],
)
def test_class_weights_that_are_none_say_what_to_give(weights: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_config(apply_overrides({}, [f"train.class_weights={weights}"]))
    message = str(refused.value)
    assert message.startswith("setting train.class_weights=")
    assert message.endswith(
        "must be none, balanced, or one number per class, at least 0 and not all 0, such as [1, 2.5]"
    )


@pytest.mark.parametrize(
    ("given", "found"), [("1,2.5", [1.0, 2.5]), ("[0, 3]", [0.0, 3.0]), ("none", "none")]
)
def test_class_weights_are_lists_like_others(given: str, found: Any) -> None:
    assert build_config(apply_overrides({}, [f"train.class_weights={given}"])).train.class_weights == found


@pytest.mark.parametrize(
    "name",
    [
        "007",
        "1e3",
        "1_000",
        "no",
        "1.50",
        "2024-01-02",
        "a: b.npz",
        "a #1.npz",
        "[a",
        "{b}",
        "&c",
        "📈",
        "it's",
    ],
)
def test_names_of_files_stay_as_they_are(name: str) -> None:
    assert build_config(apply_overrides({}, [f"data.source={name}"])).data.source == name
    for key in ("links.split", "links.times", "distributed.network"):
        assert dict(flatten_settings(apply_overrides({}, [f"{key}={name}"]))) == {key: name}


@given(st.text(min_size=1))
@example("📈.npz")
@example("\x7f\u0085\ufeff\udc80")
def test_texts_of_options_are_read_as_they_are(text: str) -> None:
    assert apply_overrides({}, option_overrides(data__source=text, key=text)) == {
        "data": {"source": text},
        "key": text,
    }


@given(st.text("0123456789-+._eExb: ", min_size=1, max_size=8).map(str.strip).filter(bool))
def test_texts_of_digits_come_back_from_settings_files(text: str) -> None:
    config = build_config({"data": {"source": text}})
    assert build_config(yaml.load(to_yaml(config), StrictYaml)) == config
    assert build_config(yaml.safe_load(to_yaml(config))) == config


def test_paths_of_files_become_absolute_and_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run may start in another folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("d.npz", "s.npz", "t.npz", "n.yaml"):
        (tmp_path / name).touch()
    links = {"train": {"objective": "links"}}
    for key, name, more in (
        ("data.source", "d.npz", {}),
        ("links.split", "s.npz", links),
        ("links.times", "t.npz", {**links, "links": {"split": "time"}}),
        ("distributed.network", "n.yaml", {}),
    ):
        config = build_config(apply_overrides({**more}, [f"{key}={name}"]))
        changed = dict(flatten_settings(make_paths_absolute(config).model_dump()))
        assert changed == dict(flatten_settings(config.model_dump())) | {key: str(tmp_path / name)}
    named = {"data": {"source": "synthetic:tiny"}, "distributed": {"network": "10gbit"}}
    assert make_paths_absolute(build_config(named)) == build_config(named)


def test_a_settings_file_may_have_an_equals_sign_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("lr=0.1") / "run.yaml"
    assert split_arguments([str(file), "seed=3"]) == (None, [str(file), "seed=3"])
    file.parent.mkdir()
    file.write_text("seed: 2\n")
    assert split_arguments([str(file), "seed=3"]) == (file, ["seed=3"])
    with pytest.raises(ConfigError, match="are both settings files: use only one"):
        split_arguments([str(file), "other.yaml"])


def test_importing_it_imports_nothing_large() -> None:
    code = "import sys, hyrt.config; print([m for m in ('torch', 'numpy', 'numba') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, False),
        ({"devices": ["cpu:0", "cpu:1"]}, False),
        ({"devices": ["cpu:0=1", "cpu:1=1"]}, True),
        ({"split": [1024]}, True),
    ],
)
def test_whether_the_split_is_given(settings: dict[str, Any], given: bool) -> None:
    assert build_config(settings).has_explicit_split is given


ODD = [
    None,
    True,
    -1,
    10**400,
    0.5,
    math.nan,
    "x",
    "\ud800",
    b"\xff",
    [],
    [None],
    {1: 2},
    {"x": [1]},
    object(),
]


def _paths() -> list[str]:
    known = known_keys(Config)
    return [*known, *(f"sampler.{name}" for name in SaintSettings.model_fields)]


@pytest.mark.parametrize("path", _paths())
def test_no_value_is_answered_in_the_words_of_pydantic(path: str) -> None:
    kind = "saint" if path.startswith("sampler.") else "neighbor"
    for value in ODD:
        tree: Any = value
        for part in reversed(path.split(".")):
            tree = {part: tree}
        if path.startswith("sampler.") and path != "sampler.kind":
            tree["sampler"]["kind"] = kind
        said = ""
        try:
            build_config(tree)
        except ConfigError as error:
            said = str(error)
        assert not re.search(r"Input|instance of| valid |Extra inputs|Keys should", said), said


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("train:\n  lr: 0.1\n  epochs: 2\n  lr: 0.2\n")
    with pytest.raises(
        ConfigError, match=r"s\.yaml is not valid YAML: .*line 4.*duplicate key 'lr': keep only one"
    ):
        load_settings(file)
    file.write_text("seed: 1\ntrain: {lr: 1e-3}\nseed: 2\n")
    with pytest.raises(ConfigError, match="duplicate key 'seed'"):
        load_settings(file)
    with pytest.raises(ConfigError, match=r"train.optimizer_options=.*duplicate key 'eps'"):
        apply_overrides({}, ["train.optimizer_options={eps: 1, eps: 2}"])


def test_a_resumed_run_may_be_told_again_what_it_has() -> None:
    config = build_config({"sampler": {"kind": "full"}, "train": {"epochs": 3}})
    found = resumed_config(config, None, ["sampler.kind=full", "train.epochs=5"])
    assert found.sampler.kind == "full"
    assert found.train.epochs == 5
    with pytest.warns(SettingWarning, match=r"train\.epochs"):
        assert resumed_config(config, None, ["train.epochs=5", "train.epochs=3"]).train.epochs == 3
    for other in ("sampler.kind=neighbor", "train.lr=0.5", "nonsense=1"):
        with pytest.raises(ConfigError, match=f"{other.partition('=')[0]} cannot change"):
            resumed_config(config, None, [other])
    # A rank of several has devices of its own.
    assert resumed_config(config, None, ["devices=opencl"], also=["devices"]).devices == ["opencl"]


@pytest.mark.parametrize(
    "started",
    [
        {"runtime": {"max_in_flight_steps": 2}},
        {"runtime": {"pipelined": False}},
        {"sampler": {"kind": "full", "fanout": [5, 5]}},
    ],
)
def test_a_run_of_an_earlier_version_goes_on_with_what_new_runs_may_not_have(started: dict[str, Any]) -> None:
    whole = {"sampler": {"kind": "full"}}
    with pytest.raises(ConfigError, match="has no effect with"):
        build_config(whole | started)
    config = build_config(whole | started, lenient=True)
    assert resumed_config(config, None, []) == config
    found = resumed_config(config, None, ["sampler.kind=full", "train.epochs=7"])
    assert found.train.epochs == 7
    assert (found.runtime, found.sampler) == (config.runtime, config.sampler)
    with pytest.raises(ConfigError, match=r"train\.lr cannot change"):
        resumed_config(config, None, ["train.lr=0.5"])
    with pytest.raises(ConfigError, match=r"runtime\.max_in_flight_steps=2 has no effect with"):
        resumed_config(build_config(whole), None, ["runtime.max_in_flight_steps=2"])


def test_a_key_with_a_point_in_a_file_is_told_to_be_a_section(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("train.epochs: 5")
    with pytest.raises(
        ConfigError, match=r"'train\.epochs' contains a dot, .*: write train: {epochs: \.\.\.}$"
    ):
        new_config(file, [])


def test_what_is_no_settings_file_is_told_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, file in {
        "run": "config.yaml",
        "data": "indptr.npy",
        "parts": "partition.json",
        "other": "x",
    }.items():
        Path(folder).mkdir()
        (Path(folder) / file).touch()
    for word, says in {
        "run": "run is the folder of a run, .*: write --resume run to continue it, or run/config.yaml",
        "data": "data is a dataset, .*: write --data data",
        "parts": "parts is a dataset, .*: write --data parts",
        "other": "other is a folder, not a settings file: write settings as key.path=value",
        "/dev/null": "/dev/null is a special file: use a settings file",
        "none": "none: no such settings file",
    }.items():
        with pytest.raises(ConfigError, match=says):
            split_arguments([word])


def test_settings_come_from_a_pipe() -> None:
    """As of `hyrt run <(command)`."""
    read, write = os.pipe()
    os.write(write, b"train: {epochs: 7}")
    os.close(write)
    try:
        file, _ = split_arguments([f"/dev/fd/{read}"])
        assert new_config(file, []).train.epochs == 7
    finally:
        os.close(read)
