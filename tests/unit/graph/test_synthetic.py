from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import kstest
from sklearn.linear_model import RidgeClassifier

from hyrt.errors import DataError
from hyrt.graph import csr, open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.schema import Dataset, FeatureRows, check_dataset
from hyrt.graph.synthetic import PRESETS, generate, parse_spec
from hyrt.graph.synthetic import planted_partition as planted_module
from hyrt.graph.synthetic import planted_partition as population

TINY = ["842f3ff2d93a904a", "0a294fd2fc578d76", "0f6a0430f81b5f87", "a79860bdc86b4f3e"]


@pytest.fixture(scope="module")
def graph():
    return open_graph("synthetic:community,vertices=20k,edges=400k,seed=5")


def _matrix(graph):
    count = graph.num_vertices
    return sparse.csr_matrix(
        (np.ones(graph.num_edges), graph.topology.indices, graph.topology.indptr), shape=(count, count)
    )


def test_structure(graph, tmp_path):
    assert graph.num_edges == 400_000
    matrix = _matrix(graph)
    assert abs(matrix - matrix.T).nnz == 0
    assert matrix.diagonal().sum() == 0
    arrays = {"indptr": graph.topology.indptr, "indices": graph.topology.indices, "labels": graph.labels}
    arrays |= {f"{split}_mask": mask for split, mask in graph.masks.items()}
    # Generated graphs skip the checks that files get: here they do not.
    check_dataset(Dataset("generated", arrays, FeatureRows.from_array(graph.features.values)))


@pytest.mark.parametrize("preset", ["community", "tiny"])
def test_preset_counts(preset):
    spec = PRESETS[preset]
    graph = open_graph(f"synthetic:{preset}")
    assert (graph.num_vertices, graph.num_edges, graph.num_features) == (
        spec.vertices,
        spec.edges,
        spec.features,
    )
    assert graph.num_classes == spec.classes
    assert {split: int(mask.sum()) for split, mask in graph.masks.items()} == {
        "train": spec.train,
        "val": spec.val,
        "test": spec.test,
    }


def test_large_presets_are_those_of_the_benchmarks():
    products, papers = PRESETS["products-s"], PRESETS["papers-s"]
    assert (products.vertices, products.edges, products.features, products.classes) == (
        612_000,
        30_000_000,
        100,
        47,
    )
    assert (products.train, products.val, products.test) == (49_000, 10_000, 50_000)
    assert (papers.vertices, papers.edges, papers.features, papers.classes) == (
        2_000_000,
        30_000_000,
        128,
        172,
    )
    assert (papers.train, papers.val, papers.test) == (24_000, 10_000, 50_000)


def test_weights_follow_the_power_law():
    count = 200_000
    labels, weights = np.empty(count, np.int16), np.empty(count, np.int64)
    planted_module.kernels.draw_vertices(
        np.uint64(1), np.uint64(2), np.array([1.0]), 1e12, 2.0**20, 0, labels, weights
    )
    # P(weight > t) = t^(-4/3) for t >= 1: Pareto with shape 4/3.
    assert kstest(weights / 2.0**20, "pareto", args=(4 / 3,)).pvalue > 1e-3


def test_degrees_follow_the_weights():
    spec = parse_spec("synthetic:community,vertices=20k,edges=400k,seed=5")
    model = planted_module._draw_model(spec)
    weights = np.empty(spec.vertices)
    weights[model.vertices.order] = np.diff(model.vertices.cumulative)
    graph = open_graph(spec.name)
    expected = weights / weights.sum() * graph.num_edges
    degrees = graph.topology.in_degrees
    # Within a class the second ends are drawn by weight in the class: classes of equal weight shares agree
    # only nearly.
    for low, high in [(0, 10), (10, 30), (30, 100), (100, 400)]:
        chosen = (expected >= low) & (expected < high)
        assert chosen.sum() > 20
        assert degrees[chosen].mean() == pytest.approx(expected[chosen].mean(), rel=0.06)
    assert np.corrcoef(np.log1p(degrees), np.log(expected))[0, 1] > 0.85


def test_degrees_have_a_heavy_tail(graph):
    degrees = np.sort(graph.topology.in_degrees)[::-1]
    assert degrees[0] > 20 * degrees.mean()
    # Exponent 7/3: P(degree > t) falls as t^(-4/3).
    assert (degrees > 20).mean() / (degrees > 80).mean() == pytest.approx(4 ** (4 / 3), rel=0.15)


@pytest.mark.parametrize("homophily", [0.0, 0.5, 0.9])
def test_homophily(homophily):
    graph = open_graph(f"synthetic:community,vertices=20k,edges=400k,homophily={homophily}")
    labels = graph.labels
    same = (np.repeat(labels, graph.topology.in_degrees) == labels[graph.topology.indices]).mean()
    share = np.bincount(labels, weights=graph.topology.in_degrees) / graph.num_edges
    # A little less: duplicates fall away, and most of them are inside classes.
    assert same == pytest.approx(homophily + (1 - homophily) * (share**2).sum(), abs=0.03)


def test_features_are_class_mean_plus_unit_noise(graph):
    values, labels = graph.features.values, graph.labels
    means = np.stack([values[labels == c].mean(0) for c in range(graph.num_classes)])
    noise = values - means[labels]
    assert noise.mean() == pytest.approx(0, abs=0.005)
    assert noise.std() == pytest.approx(1, abs=0.01)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(noise[:-1, 3], noise[1:, 3])[0, 1]) < 0.03
    signal = PRESETS["community"].signal
    assert means.std() == pytest.approx(signal, rel=0.2)
    # The distribution is a sum of eight uniforms: nearly normal.
    assert np.quantile(noise, [0.025, 0.16, 0.84, 0.975]) == pytest.approx(
        [-1.96, -0.99, 0.99, 1.96], abs=0.03
    )


def test_neighbours_say_more_than_features_alone(graph):
    values = graph.features.values.astype(np.float64)
    mean = _matrix(graph).multiply(1 / np.maximum(graph.topology.in_degrees, 1)[:, None]).tocsr()
    train, test = graph.split("train"), graph.split("test")

    def accuracy(columns):
        model = RidgeClassifier().fit(columns[train[:4000]], graph.labels[train[:4000]])
        return model.score(columns[test], graph.labels[test])

    alone = accuracy(values)
    hops = accuracy(np.hstack([values, mean @ values, mean @ (mean @ values)]) * 3)
    assert alone < 0.5
    assert hops > alone + 0.25


def _digest(graph):
    return [
        hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:16]
        for array in (
            graph.topology.indptr,
            graph.topology.indices,
            graph.features.values,
            graph.labels,
            *graph.masks.values(),
        )
    ]


def test_same_seed_same_graph_for_any_number_of_threads(monkeypatch, graph):
    name = graph.name
    for cpus in (1, 3):
        monkeypatch.setattr(csr, "available_cores", lambda cpus=cpus: cpus)
        monkeypatch.setattr(planted_module, "available_cores", lambda cpus=cpus: cpus)
        monkeypatch.setattr(population, "available_cores", lambda cpus=cpus: cpus)
        assert _digest(open_graph(name)) == _digest(graph)
    assert _digest(open_graph("synthetic:tiny,seed=1")) != _digest(open_graph("synthetic:tiny"))


def test_same_graph_as_ever():
    # These change only with a change that changes every generated graph: say so in the changelog.
    assert _digest(open_graph("synthetic:tiny"))[:4] == TINY


def test_folder_equals_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csr, "RANGE_ENTRIES", 3000)
    spec = "synthetic:tiny,dtype=float16"
    convert(Conversion(spec, tmp_path / "a"))
    assert _digest(open_graph(tmp_path / "a", check=True)) == _digest(open_graph(spec))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "vertices=1",
        "vertices=1,edges=0",
        "vertices=2,edges=0,classes=2",
        "vertices=300,edges=0",
        "vertices=50,edges=200,classes=50",
        "tiny,edges=2,homophily=1",
        "tiny,vertices=100,edges=800,homophily=1,classes=3",
        "tiny,signal=0,seed=9223372036854775807",
    ],
)
def test_degenerate(text):
    graph = open_graph(f"synthetic:{text}")
    matrix = _matrix(graph)
    assert matrix.has_canonical_format or graph.num_edges == 0
    assert abs(matrix - matrix.T).nnz == 0
    assert graph.num_edges == parse_spec(f"synthetic:{text}").edges


def test_dense_request_is_refused_or_met():
    with pytest.raises(DataError, match="is too many for"):
        generate(parse_spec("synthetic:tiny,vertices=60,edges=1700,classes=4,homophily=1"))
    graph = open_graph("synthetic:tiny,vertices=60,edges=900,classes=2,homophily=0.2")
    assert graph.num_edges == 900


def test_parameters():
    spec = parse_spec("synthetic:products-s,vertices=20M,dtype=float16,seed=3")
    assert (spec.vertices, spec.edges, spec.dtype, spec.seed) == (20_000_000, 980_392_156, "float16", 3)
    assert parse_spec("synthetic:") == parse_spec("synthetic:community").__class__(
        **{
            field: getattr(PRESETS["community"], field)
            for field in PRESETS["community"].__slots__
            if field != "name"
        },
        name="synthetic:",
    )
    assert parse_spec("synthetic:tiny,edges=1.5k").edges == 1500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comunity", "unknown preset 'comunity': did you mean 'community'?"),
        ("tiny,vertex=5", "unknown parameter 'vertex': did you mean 'vertices'?"),
        ("tiny,seed", "seed has no value: write seed=..."),
        ("tiny,edges=many", "edges=many is not a count"),
        ("tiny,vertices=1_", "vertices=1_ is not a count"),
        ("tiny,vertices=1__0", "vertices=1__0 is not a count"),
        ("tiny,vertices=١٠٠", "vertices=١٠٠ is not a count"),
        ("tiny,homophily=٠.٥", "homophily=٠.٥ is not a number"),
        ("tiny,vertices=" + "9" * 400 + ".5", "is not a count"),
        ("tiny,vertices=" + "9" * 5000, "is not a count"),
        (",", "there is an empty entry between two commas or at an end: remove a comma"),
        ("tiny,,seed=1", "there is an empty entry between two commas"),
        (",vertices=100", "there is an empty entry between two commas"),
        ("tiny,edges=1.5", "edges=1.5 is not a count"),
        ("tiny,edges=3", "in both directions: use an even number"),
        ("tiny,vertices=0", "vertices=0 is out of range: use a number from 1 to"),
        ("tiny,vertices=10,edges=80", "at most half of all pairs"),
        ("tiny,homophily=2", "homophily=2.0 is out of range: use a number from 0 to 1"),
        ("tiny,homophily=x", "homophily=x is not a number"),
        ("tiny,signal=nan", "signal=nan is out of range: use a number from 0"),
        ("tiny,dtype=int8", "dtype=int8 is not supported: use float32 or float16"),
        ("tiny,seed=1,seed=2", "seed is set twice"),
        ("tiny,train=2k,val=1", "exceed the 2,000 vertices"),
        ("tiny,classes=3000", "classes=3,000"),
    ],
)
def test_bad_parameters(text, message):
    with pytest.raises(DataError) as caught:
        open_graph(f"synthetic:{text}")
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"synthetic:{text}: ")
