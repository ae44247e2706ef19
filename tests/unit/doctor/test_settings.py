"""Settings against datasets and machines; sizes against what opening the dataset finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.graph.saved_by_dgl import saved_by_dgl

import hyrt
from hyrt.config import build_config
from hyrt.doctor.dataset_sizes import SizesUnknownError, read_dataset_sizes
from hyrt.doctor.diagnose import DoctorRequest, evaluate_settings, probe_settings, requested_devices
from hyrt.doctor.software_probes import probe_run_settings
from hyrt.errors import DataError
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.source import open_dataset, open_graph
from hyrt.predict.memory_needs import _MOMENTS, estimate_needs, optimizer_values_per_weight
from hyrt.predict.step_dry_run import meta_model
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.training.setup import build_model

GPU = {"name": "gpu:0", "kind": "gpu", "index": 0, "memory_bytes": 2**20, "zero_copy": False}
GPU |= {"host_cores": 0, "simulated": False}


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hyrt.graph.formats.dataset_files import write_npz

    folder = tmp_path_factory.mktemp("data")
    write_npz(open_dataset("synthetic:tiny", folder), folder / "tiny.npz")
    return folder / "tiny.npz"


@pytest.fixture(scope="module")
def mapped(npz: Path) -> Path:
    folder = npz.with_name("tiny")
    folder.mkdir()
    for key, array in np.load(npz).items():
        np.save(folder / f"{key}.npy", array)
    return folder


@pytest.mark.parametrize("kind", ["synthetic", "npz", "folder"])
def test_sizes_are_those_of_the_opened_graph(kind: str, npz: Path, mapped: Path) -> None:
    source = {"synthetic": "synthetic:tiny", "npz": str(npz), "folder": str(mapped)}[kind]
    graph = open_graph(source)
    found = read_dataset_sizes(source, 0, "none")
    assert isinstance(graph.features, DenseFeatures)
    assert found.degrees.num_vertices == graph.num_vertices
    assert found.degrees.num_edges == pytest.approx(graph.num_edges, rel=0.02)
    assert (found.features, found.classes) == (graph.num_features, graph.num_classes)
    assert found.targets == len(graph.split("train"))
    held = graph.features.values.nbytes
    topology = graph.topology.indptr.nbytes + graph.topology.indices.nbytes
    if kind == "folder":
        assert found.feature_bytes + found.graph_bytes == 0
        assert found.mapped_bytes == pytest.approx(held + topology, rel=0.3)
    else:
        assert found.feature_bytes == held
        assert found.graph_bytes == pytest.approx(topology, rel=0.02)


def test_a_scaled_folder_is_in_memory(mapped: Path) -> None:
    graph = open_graph(mapped, normalize="row")
    assert isinstance(graph.features, DenseFeatures)
    assert read_dataset_sizes(str(mapped), 0, "row").feature_bytes == graph.features.values.nbytes


@pytest.mark.parametrize("as_folder", [False, True])
def test_targets_are_those_of_the_chosen_split(npz: Path, tmp_path: Path, as_folder: bool) -> None:
    arrays = dict(np.load(npz))
    train = arrays["train_mask"]
    for key in ("train_mask", "val_mask", "test_mask"):
        arrays[key] = np.stack([arrays[key], arrays[key] & (np.arange(len(train)) % 2 > 0)], axis=1)
    source = tmp_path / ("two" if as_folder else "two.npz")
    if as_folder:
        source.mkdir()
        for key, array in arrays.items():
            np.save(source / f"{key}.npy", array)
    else:
        np.savez(source, **arrays)
    found = [read_dataset_sizes(str(source), split, "none").targets for split in (0, 1)]
    assert found == [train.sum(), train[1::2].sum()]
    with pytest.raises(DataError, match=r"has no split 2, only 2 splits: set data\.split from 0 to 1"):
        read_dataset_sizes(str(source), 2, "none")


def test_datasets_that_are_not_there_or_damaged(npz: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_dataset_sizes(str(tmp_path / "none.npz"), 0, "none")
    torn = tmp_path / "torn.npz"
    torn.write_bytes(npz.read_bytes()[:5000])
    with pytest.raises(DataError, match="damaged"):
        read_dataset_sizes(str(torn), 0, "none")
    short = tmp_path / "short"
    short.mkdir()
    for key, array in np.load(npz).items():
        np.save(short / f"{key}.npy", array)
    whole = (short / "features.npy").read_bytes()
    (short / "features.npy").write_bytes(whole[:-4])
    with pytest.raises(DataError, match=r"features.*truncated"):
        read_dataset_sizes(str(short), 0, "none")


def test_a_published_dataset_needs_the_package_that_downloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(DataError, match="ogb package"):
        read_dataset_sizes("ogbn-products", 0, "none")
    (tmp_path / "dataset" / "ogbn_products").mkdir(parents=True)
    # Hu et al. 2020, table 2: 2,449,029 products in 61,859,140 undirected edges.
    found = read_dataset_sizes("ogbn-products", 0, "none")
    assert found.degrees.num_vertices == 2_449_029
    assert found.feature_bytes == 2_449_029 * 100 * 4
    (tmp_path / "dataset" / "ogbn_other").mkdir()
    with pytest.raises(SizesUnknownError):
        read_dataset_sizes("ogbn-other", 0, "none")


def test_needs_are_bounded_by_a_count_by_hand() -> None:
    config = build_config(
        {
            "data": {"source": "synthetic:tiny", "batch_size": 256},
            "model": {"kind": "gcn", "hidden": 64},
            "sampler": {"fanout": [2, 3]},
            "checkpoint": {"keep": 2},
        }
    )
    sizes = read_dataset_sizes("synthetic:tiny", 0, "none")
    found = estimate_needs(config, sizes, [])
    # Layers of 16 -> 64 and 64 -> 4 with biases; each file has weights, two moments, the best weights, and
    # some state.
    weights = 17 * 64 + 65 * 4
    file = found["disk"]["least_bytes"]
    assert 4 * weights * 4 < file < 4 * weights * 4 + 2**14
    assert found["disk"] == {
        "checkpoints_bytes": 3 * file,
        "evaluation_bytes": 0,
        "total_bytes": 3 * file,
        "least_bytes": file,
    }
    # At least the master copy, its gradient, two moments, the best weights, and a replica with its gradients.
    assert 7 * weights * 4 <= found["host"]["weights_bytes"] <= 10 * weights * 4
    assert 2 * file <= found["host"]["checkpoint_bytes"] <= 3 * file
    # No mini-batch has more than 256 targets with 2 neighbours each with 3, nor more vertices than the graph.
    rows = min(256 * 3 * 4, 2000)
    most = 4 * (rows * 16 * 4 + 256 * 2 * 4 + 256 * 3 * 3 * 4 + 256 * 4 * 8)
    most += (256 * 3 * (16 + 64) + 256 * (64 + 4) + 256 * 3 * 16) * 4
    least = 4 * 256 * 16 * 4
    assert least < found["host"]["mini_batches_bytes"] <= most
    assert found["host"]["dataset_bytes"] == round(sizes.feature_bytes + sizes.graph_bytes)
    assert found["devices"] == {}


def test_a_device_of_its_own_memory_holds_its_share() -> None:
    config = build_config({"data": {"source": "synthetic:tiny", "batch_size": 256}, "devices": "cpu=1,gpu=3"})
    sizes = read_dataset_sizes("synthetic:tiny", 0, "none")
    found = estimate_needs(config, sizes, [GPU])
    memory = found["devices"]["gpu:0"]
    assert memory["have_bytes"] == 2**20
    # 192 targets at least stage their own rows.
    assert memory["need_bytes"] > 2 * 192 * 16 * 4
    limited = config.model_copy(
        update={"runtime": config.runtime.model_copy(update={"device_memory_gib": 2**-12})}
    )
    assert estimate_needs(limited, sizes, [GPU])["devices"]["gpu:0"]["have_bytes"] == 2**18


def test_of_a_trainer_elsewhere_the_host_holds_the_gradients() -> None:
    def weights_bytes(devices: str) -> int:
        model = {"kind": "gcn", "hidden": 64, "layers": 2}
        settings = {"data": {"source": "synthetic:tiny"}, "model": model, "devices": devices}
        found = estimate_needs(build_config(settings), read_dataset_sizes("synthetic:tiny", 0, "none"), [GPU])
        count: int = found["host"]["weights_bytes"]
        return count

    # Layers of 16 -> 64 and 64 -> 4 with biases, in float32.
    once = (17 * 64 + 65 * 4) * 4
    alone = weights_bytes("cpu")
    assert weights_bytes("cpu=1,gpu=1") - alone == once
    # In host memory there is the replica, too.
    assert weights_bytes("cpu:0=1,cpu:1=1") - alone == 2 * once


@pytest.fixture(scope="module")
def sparse(npz: Path) -> Path:
    """The same graph, each of its rows with two stored values of 1000 columns."""
    arrays = dict(np.load(npz))
    count = len(arrays.pop("features"))
    arrays |= {
        "feat_indptr": np.arange(0, 2 * count + 1, 2),
        "feat_indices": np.tile(np.array([3, 999], np.int32), count),
        "feat_values": np.ones(2 * count, np.float32),
        "feat_shape": np.array([count, 1000]),
    }
    np.savez(npz.with_name("sparse.npz"), **arrays)
    return npz.with_name("sparse.npz")


@pytest.mark.parametrize("kind", ["neighbor", "saint"])
def test_sparse_features_and_walks_are_estimated(sparse: Path, kind: str) -> None:
    graph = open_graph(sparse)
    settings = {"data": {"source": str(sparse)}, "sampler": {"kind": kind}, "model": {"hidden": 64}}
    small, wide = (
        estimate_needs(build_config({**settings, "model": {"hidden": hidden}}), sizes, [])
        for sizes in [read_dataset_sizes(str(sparse), 0, "none")]
        for hidden in (64, 10**8)
    )
    once = sum(parameter.numel() for parameter in build_model(build_config(settings), graph).parameters()) * 4
    assert small["disk"]["least_bytes"] == pytest.approx(4 * once, abs=2**14)
    # At least the weights of every hidden unit: its own row and its neighbours', the classes' two, and both
    # moments.
    assert wide["disk"]["least_bytes"] > 3 * 2 * (1000 + graph.num_classes) * 10**8 * 4
    assert wide["host"]["weights_bytes"] > 6 * 2 * (1000 + graph.num_classes) * 10**8 * 4
    # Sparse rows stay sparse: less than the dense rows of one mini-batch, more than its stored values.
    assert 2 * graph.num_vertices * 8 / 4 < small["host"]["mini_batches_bytes"] < graph.num_vertices * 4000
    assert (
        read_dataset_sizes(str(sparse), 0, "row").feature_bytes
        == read_dataset_sizes(str(sparse), 0, "none").feature_bytes
    )


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("more", [{}, {"norm": "layer", "residual": True, "layers": 3}])
def test_weights_are_those_of_the_model(kind: str, more: dict[str, Any], npz: Path) -> None:
    config = build_config({"model": {"kind": kind, "hidden": 24, **more}})
    graph = open_graph(npz)
    count = sum(parameter.numel() for parameter in build_model(config, graph).parameters())
    bare = meta_model(config, graph.num_features, graph.num_classes)
    assert sum(parameter.numel() for parameter in bare.parameters()) == count
    assert all(parameter.is_meta for parameter in bare.parameters())
    disk = estimate_needs(config, read_dataset_sizes(str(npz), 0, "none"), [])["disk"]
    # Weights, Adam's two moments and the best weights, and some state.
    assert 4 * 4 * count < disk["least_bytes"] < 4 * 4 * count + 2**14


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in _MOMENTS if hasattr(torch.optim, name)]
    + [("SGD", {}), ("SGD", {"momentum": 0.9}), ("AdamW", {"amsgrad": True})]
    + [("RMSprop", {"momentum": 0.5, "centered": True})],
)
def test_moments_are_those_that_the_optimizer_keeps(name: str, options: dict[str, Any]) -> None:
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = getattr(torch.optim, name)([weight], lr=0.1, **options)
    weight.grad = torch.ones(8, 8)
    optimizer.step()
    kept = sum(value.numel() for value in optimizer.state[weight].values() if torch.is_tensor(value))
    assert round(kept / 64) == optimizer_values_per_weight(name, options)


def told(**options: str | None) -> Answer:
    words = options.pop("words", None)
    asked = DoctorRequest(words=tuple(words.split()) if words else (), options=options)
    with IsolatedWorker() as children:
        answer = probe_settings(children, asked, [GPU], 60.0)
    assert answer is not None
    return answer


def states(answer: Answer, cpus: int = 2) -> list[tuple[str, str]]:
    return [(found.check, found.state) for found in evaluate_settings(answer, cpus)]


def test_a_model_that_another_package_claims_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme_gcn-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gcn\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.models]\ngcn = acme_gcn:Gcn\n")
    monkeypatch.syspath_prepend(tmp_path)
    findings = evaluate_settings(told(data__source="synthetic:tiny", model__kind="gcn", devices="cpu"), 2)
    (wrong,) = [found for found in findings if found.state == "broken"]
    assert wrong.check == "settings"
    assert wrong.found.startswith("model.kind 'gcn' is declared by acme-gcn 1.0 and by hyrt ")
    assert wrong.remedy == "uninstall acme-gcn 1.0"


def test_settings_are_read_in_a_child(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("runtime: {sample_threads: 9}\n")
    answer = told(words=f"{file} train.epochs=1", data__source="synthetic:tiny", devices="gpu")
    assert requested_devices(answer) == ["gpu"]
    assert states(answer) == [
        ("settings", "ok"),
        ("threads", "warning"),
        ("data", "ok"),
        ("device memory", "warning"),
    ]


@pytest.mark.parametrize(
    ("words", "check", "text"),
    [
        ("train.epoch=1", "settings", "did you mean 'train.epochs'"),
        ("data.source=/nowhere", "data", "no such file"),
    ],
)
def test_wrong_settings_are_broken(words: str, check: str, text: str) -> None:
    answer = told(words=words)
    (found,) = [each for each in evaluate_settings(answer, 2) if each.state == "broken"]
    assert found.check == check
    assert text in found.found


def test_without_settings_the_cpu_is_wanted() -> None:
    with IsolatedWorker() as children:
        assert probe_settings(children, DoctorRequest(options={"devices": None}), [], 60.0) is None
    assert evaluate_settings(None, 2) == []
    assert requested_devices(None) == ["cpu"]


def test_no_field_is_lost_between_the_processes() -> None:
    said: tuple[dict[str, Any], ...] = ({"a": 1}, {"b": 2, "a": 3})
    assert Answer(said).values("a") == [1, 3]
    assert Answer(said).first_value("c") is None


def test_a_sampler_that_cannot_say_its_sizes_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeighborSettings, "expected_sizes", SamplerSettings.expected_sizes)
    said: dict[str, Any] = {}
    probe_run_settings("", said.update, words=["data.source=synthetic:tiny"], options={}, found=[])
    assert said["sizes"]
    assert "needs" not in said
    assert said["unknown"] == "the sampler does not say how large its mini-batches are"


def test_sizes_of_typed_graphs_are_known_once_they_are_open(tmp_path):
    source = "synthetic:hetero,vertices=300"
    names = [source, "mag240m:typed"]
    for name in ("a.npz", "a"):
        hyrt.save(source, tmp_path / name)
        names.append(str(tmp_path / name))
    (tmp_path / "saved.bin").write_bytes(saved_by_dgl("plain"))
    for name in names:
        with pytest.raises(
            SizesUnknownError, match="the sizes of a heterogeneous graph are only known after it"
        ):
            read_dataset_sizes(name, 0, "none")
    with pytest.raises(
        SizesUnknownError, match=r"the sizes of the DGL graph in .* are only known after it is opened"
    ):
        read_dataset_sizes(str(tmp_path / "saved.bin"), 0, "none")
