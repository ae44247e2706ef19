"""Platforms and workloads as files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.platform_file import load_platform, parse_platform, platform_names
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.validation import read_yaml
from hyrt_perfmodel.workload import TrainingWorkload, Workload, load_workload, proportional_workload

PLATFORM = {
    "host": {"memory_gb_s": 100, "macs_per_s": "1e12", "trains": True},
    "accelerators": [
        {
            "kind": "gpu",
            "memory_gb_s": 500.0,
            "macs_per_s": 5e12,
            "link_gb_s": 16,
            "pipelined": False,
            "reads_each_source_once": False,
            "count": 2,
        }
    ],
}
WORKLOAD = {
    "vertices": [1000, 200, 50],
    "edges": [2000, 500],
    "features": [10, 20, 5],
    "concat": True,
    "bytes_per_value": 4,
    "targets_per_epoch": 1000,
    "batch_per_trainer": 50,
    "sample_s": "2e-3",
}


def test_a_platform_is_read() -> None:
    platform = parse_platform(PLATFORM, "p.yaml")
    assert [trainer.name for trainer in platform.trainers()] == ["cpu:0", "gpu:0", "gpu:1"]
    assert platform.host.macs_per_s == 1e12
    assert platform.name == "p.yaml"


@pytest.mark.parametrize("name", [name for name in platform_names() if name != "this-machine"])
def test_every_built_in_platform_says_what_it_assumes(name: str) -> None:
    platform = load_platform(name)
    assert platform.name == name
    assert platform.source.startswith("assumed")
    assert platform.trainers()


def test_the_papers_machines_and_devices_are_built_in() -> None:
    wanted = {
        "amd-epyc-7763",
        "nvidia-rtx-a5000",
        "xilinx-alveo-u250",
        "2x-epyc7763-4x-a5000",
        "2x-epyc7763-4x-u250",
        "h200",
        "this-machine",
    }
    assert wanted <= set(platform_names())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"host": None}, r"p.yaml: host: expected a mapping \(key: value\), got nothing"),
        ({"host": {"memory_gb_s": 1}}, "p.yaml: host: the key 'macs_per_s' is missing"),
        ({"host": {"memory_gb_s": -1, "macs_per_s": 1}}, "memory_gb_s must be a number above 0, got -1"),
        (
            {"host": {"memory_gb_s": float("nan"), "macs_per_s": 1}},
            "memory_gb_s must be a finite number, got nan",
        ),
        ({"host": {"memory_gb_s": [1], "macs_per_s": 1}}, r"memory_gb_s must be a number, got \[1\]"),
        (
            {"host": {"memory_gb_s": 1, "macs_per_s": 1, "train": True}},
            "unknown key 'train': did you mean 'trains'",
        ),
        (
            {"host": {"memory_gb_s": 1, "macs_per_s": 1, "trains": "yes"}},
            "trains must be true or false, got 'yes'",
        ),
        ({"accelerators": {"kind": "gpu"}}, "accelerators must be a list, got "),
        ({"accelerators": [{"kind": "gpu"}]}, r"accelerators\[0\]: the key 'memory_gb_s' is missing"),
        ({"acelerators": []}, "unknown key 'acelerators': did you mean 'accelerators'"),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "count": 1.5}]},
            r"count must be an integer, got 1.5",
        ),
        ({"accelerators": [], "host": {**PLATFORM["host"], "trains": False}}, "has no trainer"),
        (
            {"host": {**PLATFORM["host"], "memory_gb_s": float("inf")}},
            "host.memory_gb_s must be a finite number, got inf",
        ),
        (
            {"host": {**PLATFORM["host"], "memory_gb_s": 10**400}},
            "must be a number, got a number of more than 60 digits",
        ),
        (
            {"host": {**PLATFORM["host"], "models": {"gcn": {}}}},
            "models.gcn: the key 'memory_gb_s' is missing",
        ),
        (
            {"host": {**PLATFORM["host"], "models": {"gcn": {"memory_gb_s": 1, "macs_per_s": 0}}}},
            "p.yaml: host.models.gcn: rates: macs_per_s must be a number above 0, got 0",
        ),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "kind": "cpu"}]},
            "kind must be a name without a colon .*, got 'cpu'",
        ),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "kind": "a:1"}]},
            "kind must be a name without a colon .*, got 'a:1'",
        ),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "count": 10**7}]},
            "count must be from 0 to 1024, got 10000000",
        ),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "count": -1}]},
            "count must be an integer of at least 0, got -1",
        ),
        ({"relative_error": -0.1}, "relative_error must be a fraction from 0 to 1, got -0.1"),
        ({"name": 3}, "p.yaml: name must be a string, got 3"),
    ],
)
def test_a_platform_that_is_none(change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_platform({**PLATFORM, **change}, "p.yaml")


def test_what_no_build_has_confirmed_is_said_in_the_file() -> None:
    sizes = {"pes": 8, "mac_rows": 32, "mac_cols": 64}

    def design(**more: Any) -> Any:
        content = {**PLATFORM, "accelerators": [{**PLATFORM["accelerators"][0], "design": {**sizes, **more}}]}
        return parse_platform(content, "p.yaml").accelerators[0].design

    assert {"clock_hz", "update_ii", "network_ii", "edge_ii", "ddr_efficiency"} <= design().assumed
    told = design(clock_hz=2.5e8, network_ii=2, edge_ii=3, assumed=["launch_s"])
    assert (told.clock_hz, told.network_ii, told.edge_ii) == (2.5e8, 2, 3)
    assert told.assumed == {"launch_s"}
    assert design(assumed=[]).assumed == set()
    for wrong, says in (
        (["clock"], "assumed has the unknown fields clock: choose from"),
        ("clock_hz", "assumed"),
        ([3], r"assumed\[0\] must be a string, got 3"),
    ):
        with pytest.raises(ValueError, match=rf"p\.yaml: accelerators\[0\]\.design.*{says}"):
            design(assumed=wrong)


def test_a_link_may_be_infinite_where_host_memory_is_read_in_place() -> None:
    device = {**PLATFORM["accelerators"][0], "link_gb_s": float("inf")}
    platform = parse_platform({**PLATFORM, "accelerators": [device]}, "p.yaml")
    assert platform.trainers()[1].device.link_gb_s == float("inf")


def test_a_platform_written_out_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({**PLATFORM, "name": "mine", "source": "measured", "relative_error": 0.1}))
    platform = load_platform(str(path))
    assert (platform.name, platform.source, platform.relative_error) == ("mine", "measured", 0.1)
    assert platform.accelerators == parse_platform(PLATFORM, "p").accelerators


# Each line stands for ten of the one before it.
BILLION = "a: &a [1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(9)
)
BILLION_MERGED = "a: &a {key: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join([f'*{chr(97 + i)}'] * 10)}]}}\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host: {trains: true, trains: false}", "duplicate key 'trains'"),
        ("host: " + "[" * 5000, "not readable as YAML"),
        ("host: !!python/object:os.system {}", "not valid YAML"),
        (
            "a: &a [*a]",
            r"line 1, column 4: a value contains itself through an anchor \(&a, \*a\): write the value out",
        ),
        (BILLION, r"line 1, column 1: aliases \(\*a\) expand to more than 100,000 values"),
        (BILLION_MERGED, r"aliases \(\*a\) expand to more than 100,000 values: write the values out"),
        ("x: " + "9" * 5000, "not readable as YAML"),
        ("\tx", "not valid YAML"),
    ],
)
def test_text_that_is_no_platform(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        load_platform(str(path))


def test_aliases_that_stand_for_little_and_many_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": [{"x": 1}] * 2, "c": {"x": 1, "y": 2}}
    # Keys compared with all before them would take minutes.
    path.write_text("".join(f"key_{i}: 1\n" for i in range(30_000)))
    assert len(read_yaml(path)) == 30_000


def test_only_what_aliases_repeat_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt_perfmodel.validation._MAX_ALIASED_VALUES", 12)
    path = tmp_path / "p.yaml"
    # A hundred values of their own; each alias stands for a list and its three values.
    values = ", ".join(["1"] * 96)
    path.write_text(f"a: &a [1, 2, 3]\nb: [{values}]\nc: [*a, *a, *a]\n")
    assert read_yaml(path)["c"] == [[1, 2, 3]] * 3
    path.write_text(f"a: &a [1, 2, 3]\nb: [{values}]\nc: [*a, *a, *a]\nd: *a\n")
    with pytest.raises(ValueError, match=r"aliases \(\*a\) expand to more than 12 values"):
        read_yaml(path)


def test_a_key_that_takes_the_place_of_a_merged_one_is_no_duplicate(tmp_path: Path) -> None:
    """Wherever the mapping is that is merged again: it is read after the one that merges it."""
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1}\nb: {in: &b {<<: *a, x: 2}}\nc: {<<: *b, y: 3}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"in": {"x": 2}}, "c": {"x": 2, "y": 3}}


@pytest.mark.parametrize("name", ["", "x" * 5000])
def test_no_file_has_such_a_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown platform|cannot be read|platform name is empty: use"):
        load_platform(name)


# Keys of both files, and values that a file may hold anywhere.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*PLATFORM, *PLATFORM["host"], *WORKLOAD]), inner, max_size=4)
    ),
    max_leaves=8,
)


def damaged(content: Any) -> st.SearchStrategy[Any]:
    """The content with one value, however deep, replaced by anything."""
    if isinstance(content, dict) and content:
        return anything | st.sampled_from(sorted(content)).flatmap(
            lambda key: damaged(content[key]).map(lambda value: {**content, key: value})
        )
    if isinstance(content, list) and content:
        return anything | st.sampled_from(range(len(content))).flatmap(
            lambda i: damaged(content[i]).map(lambda value: [*content[:i], value, *content[i + 1 :]])
        )
    return anything


@settings(max_examples=120, deadline=None)
@given(damaged(PLATFORM))
def test_a_damaged_platform_is_an_error_or_predicts(content: Any) -> None:
    said = ""
    try:
        platform = parse_platform(content, "p.yaml")
    except ValueError as error:
        said = str(error)
    if said:
        assert said.startswith("p.yaml:")
        assert "\n" not in said
        return
    work = proportional_workload(
        Workload(vertices=(9, 2), edges=(4,), features=(3, 2), concat=False, bytes_per_value=4), 2
    )
    training = TrainingWorkload(
        at=work, targets_per_epoch=10, batch_size=2, batch_per_trainer=2, sample_s=0.0
    )
    assert 0 < predict(platform, training, paper=True).epoch_s < float("inf")


@settings(max_examples=300, deadline=None)
@given(damaged(WORKLOAD))
def test_a_damaged_workload_is_an_error_or_predicts(content: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), yaml.safe_dump(content))
        said = ""
        try:
            training = load_workload(path)
        except ValueError as error:
            said = str(error)
    if said:
        assert said.startswith(f"{path}: ")
        return
    found = predict(parse_platform(PLATFORM, "p.yaml"), training, paper=True)
    assert found.iterations >= 1
    assert found.epoch_s > 0


def test_an_unknown_platform_has_a_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean '2x-epyc7763-4x-u250'"):
        load_platform("2x-epyc7763-4x-u280")
    with pytest.raises(ValueError, match=r"none\.yaml cannot be read"):
        load_platform("none.yaml")


def write(folder: Path, content: object) -> Path:
    path = folder / "w.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_workload_is_read(tmp_path: Path) -> None:
    training = load_workload(write(tmp_path, WORKLOAD))
    work = training.at(100)
    assert work.vertices == (2000, 400, 100)
    assert work.edges == (4000, 1000)
    assert (training.sample_s, training.targets_per_epoch, training.batch_per_trainer) == (2e-3, 1000, 50)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "got nothing"),
        ("- 1", r"expected a mapping \(key: value\), got"),
        ("a: [", "not valid YAML"),
        (
            {**WORKLOAD, "vertices": [1, 2]},
            r"vertices must be 3 numbers of at least 0 \(edges has 2\), got \(1.0, 2.0\)",
        ),
        (
            {**WORKLOAD, "vertices": [1, -2, 3]},
            r"vertices must be 3 numbers of at least 0 .*, got \(1.0, -2.0, 3.0\)",
        ),
        ({**WORKLOAD, "vertices": 5}, "vertices must be a list, got 5"),
        ({**WORKLOAD, "edges": [1, "x"]}, r"edges\[1\] must be a number, got 'x'"),
        ({**WORKLOAD, "edges": []}, "edges is empty"),
        ({**WORKLOAD, "concat": 1}, "concat must be true or false, got 1"),
        ({**WORKLOAD, "batch_per_trainer": 0}, "batch_per_trainer must be at least 1, got 0"),
        ({**WORKLOAD, "targets_per_epoch": 1.5}, "targets_per_epoch must be an integer, got 1.5"),
        ({**WORKLOAD, "sample_s": -1}, "sample_s"),
        ({**WORKLOAD, "bytes_per_value": 0}, "must be at least 1"),
        ({**WORKLOAD, "features": [0, 20, 5]}, "must be at least 1"),
        ({**WORKLOAD, "vertices": [1000, 200, 0]}, "vertices must be above 0"),
        (
            {**WORKLOAD, "vertices": [float("inf"), 200, 50]},
            r"vertices\[0\] must be a finite number, got inf",
        ),
        ({**WORKLOAD, "fanout": 3}, "unknown key 'fanout'"),
        ({k: v for k, v in WORKLOAD.items() if k != "edges"}, "the key 'edges' is missing"),
    ],
)
def test_a_workload_that_is_none_is_said_with_its_file(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(ValueError, match=rf"w\.yaml.*{says}"):
        load_workload(write(tmp_path, content))
