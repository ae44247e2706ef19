"""Platforms and workloads as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hyrt_perfmodel.platform_file import load_platform, platform_from, platform_names
from hyrt_perfmodel.workload_file import load_workload

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
    platform = platform_from(PLATFORM, "p.yaml")
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
        ({"host": None}, "p.yaml: host: holds nothing"),
        ({"host": {"memory_gb_s": 1}}, "p.yaml: host: the key 'macs_per_s' is missing"),
        ({"host": {"memory_gb_s": -1, "macs_per_s": 1}}, "memory_gb_s is -1"),
        ({"host": {"memory_gb_s": float("nan"), "macs_per_s": 1}}, "memory_gb_s is nan"),
        ({"host": {"memory_gb_s": [1], "macs_per_s": 1}}, r"memory_gb_s is \[1\]: give a number"),
        (
            {"host": {"memory_gb_s": 1, "macs_per_s": 1, "train": True}},
            "unknown key 'train': did you mean 'trains'",
        ),
        (
            {"host": {"memory_gb_s": 1, "macs_per_s": 1, "trains": "yes"}},
            "trains is 'yes': give true or false",
        ),
        ({"accelerators": {"kind": "gpu"}}, "accelerators is .*: give a list"),
        ({"accelerators": [{"kind": "gpu"}]}, r"accelerators\[0\]: the key 'memory_gb_s' is missing"),
        ({"acelerators": []}, "unknown key 'acelerators': did you mean 'accelerators'"),
        (
            {"accelerators": [{**PLATFORM["accelerators"][0], "count": 1.5}]},
            r"count is 1.5: give a whole number",
        ),
        ({"accelerators": [], "host": {**PLATFORM["host"], "trains": False}}, "has no trainer"),
    ],
)
def test_a_platform_that_is_none(change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        platform_from({**PLATFORM, **change}, "p.yaml")


def test_an_unknown_platform_has_a_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean '2x-epyc7763-4x-u250'"):
        load_platform("2x-epyc7763-4x-u280")
    with pytest.raises(ValueError, match=r"none\.yaml: cannot be read"):
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
        ("", "holds nothing"),
        ("- 1", "give a mapping"),
        ("a: [", "is not YAML"),
        ({**WORKLOAD, "vertices": [1, 2]}, "2 layers of edges need 3 vertex counts"),
        ({**WORKLOAD, "vertices": [1, -2, 3]}, "negative"),
        ({**WORKLOAD, "vertices": 5}, "vertices is 5: give a list"),
        ({**WORKLOAD, "edges": [1, "x"]}, r"edges\[1\] is 'x': give a number"),
        ({**WORKLOAD, "edges": []}, "edges is empty"),
        ({**WORKLOAD, "concat": 1}, "concat is 1: give true or false"),
        ({**WORKLOAD, "batch_per_trainer": 0}, "batch_per_trainer"),
        ({**WORKLOAD, "targets_per_epoch": 1.5}, "targets_per_epoch is 1.5: give a whole number"),
        ({**WORKLOAD, "sample_s": -1}, "sample_s"),
        ({**WORKLOAD, "fanout": 3}, "unknown key 'fanout'"),
        ({k: v for k, v in WORKLOAD.items() if k != "edges"}, "the key 'edges' is missing"),
    ],
)
def test_a_workload_that_is_none_is_said_with_its_file(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(ValueError, match=rf"w\.yaml: .*{says}"):
        load_workload(write(tmp_path, content))
