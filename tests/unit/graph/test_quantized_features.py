"""Narrow feature rows: how far rounding may be off, what it refuses, and that files keep codes and scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.errors import DataError
from hyrt.graph import Graph, open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.dataset_files import write_npz
from hyrt.graph.formats.schema import FeatureRows, from_graph
from hyrt.graph.quantized import features as quantized_features
from hyrt.graph.quantized.dataset import QuantizedRowWriter
from hyrt.graph.quantized.features import OnTheFlyQuantizedFeatures, QuantizedFeatures, quantize_graph
from hyrt.graph.quantized.row_format import INT8, INT8_COLUMNS, ROW_FORMATS
from hyrt.graph.quantized.rows import QuantizedRows, Quantizer, compute_column_scales
from hyrt.graph.row_source import DenseFeatures, QuantizedRowSource
from hyrt.runtime.workers import Workers

ALONE = Workers(1, "test")
NARROW = [name for name, row_format in ROW_FORMATS.items() if row_format.is_quantized]
CODES = ["int8", "int8-columns"]


def matrix_of(seed: int, rows: int, width: int) -> np.ndarray:
    """Rows of very different sizes, some of them zero or constant."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-44, 30, (rows, 1))
    x[rng.random(rows) < 0.2] = 0
    x[rng.random(rows) < 0.1] = 3.25
    return x.astype(np.float32)


def rounded(x: np.ndarray, name: str, seed: int | None = None) -> QuantizedRows:
    row_format = ROW_FORMATS[name]
    scales = compute_column_scales([x], x.shape[1], "x") if row_format.scales == "column" else None
    out = QuantizedRows.allocate(row_format, x.shape, scales)
    Quantizer(row_format, seed, scales).quantize_into(x, np.arange(len(x)), out, "x", ALONE)
    return out


def values_of(rows: QuantizedRows) -> np.ndarray:
    """Codes times scales, in float64 and by numpy."""
    codes = rows.codes
    if codes.dtype == np.uint16:
        return codes.view(np.float16).astype(np.float64)
    if codes.dtype == np.int16:
        return torch.from_numpy(codes).view(torch.bfloat16).double().numpy()
    by_row = 1 if rows.row_scales is None else rows.row_scales[:, None].astype(np.float64)
    by_column = 1 if rows.column_scales is None else rows.column_scales.astype(np.float64)
    return codes * by_row * by_column


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 30), width=st.integers(1, 70))
@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("draws", [False, True], ids=["nearest", "stochastic"])
def test_codes_are_within_half_a_step_of_the_scale(
    name: str, draws: bool, seed: int, rows: int, width: int
) -> None:
    x = matrix_of(seed, rows, width)
    found = rounded(x, name, seed if draws else None)
    scales = found.row_scales[:, None] if name == "int8" else found.column_scales
    assert np.abs(found.codes).max(initial=0) <= 127
    # A scale is itself rounded to float32, and so are the quotients.
    most = (1 if draws else 0.5) + 127 * 2.0**-22
    assert (np.abs(values_of(found) - x) <= most * scales).all()
    largest = np.abs(x).max(1) if name == "int8" else np.abs(x).max(0)
    assert np.allclose(np.ravel(scales), np.maximum(largest / 127, np.finfo(np.float32).tiny), rtol=1e-6)
    assert (found.codes[x == 0] == 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 30), width=st.integers(1, 70))
def test_bfloat16_and_float16_are_those_of_other_libraries(seed: int, rows: int, width: int) -> None:
    x = matrix_of(seed, rows, width)
    wanted = torch.from_numpy(x).bfloat16().view(torch.int16).numpy()
    assert (rounded(x, "bfloat16").codes == wanted).all()
    small = np.clip(x, -6e4, 6e4)
    assert (rounded(small, "float16").codes == small.astype(np.float16).view(np.uint16)).all()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 70),
    ids=st.lists(st.integers(0, 29), max_size=50),
    name=st.sampled_from(NARROW),
)
def test_rows_are_codes_times_scales(seed: int, width: int, ids: list[int], name: str) -> None:
    x = np.random.default_rng(seed).standard_normal((30, width)).astype(np.float32)
    kept = rounded(x, name)
    source = QuantizedFeatures(kept)
    wanted = np.array(ids, np.int32)
    out = np.full((len(ids), width), np.nan, np.float32)
    with Workers(2, "test") as workers:
        source.rows(wanted, out, workers)
        taken = QuantizedRows.allocate(source.row_format, out.shape, source.column_scales)
        source.quantized_rows(wanted, taken, workers)
    values = values_of(kept)[wanted]
    assert np.allclose(out, values, rtol=1e-6, atol=0)
    assert (values_of(taken) == values).all()
    assert (kept.to_float32()[wanted] == out).all()
    assert taken.nbytes == len(ids) * source.row_format.row_bytes(width) + (
        4 * width if name == "int8-columns" else 0
    )


@pytest.mark.parametrize("name", CODES)
def test_stochastic_rounding_is_right_in_the_mean_and_a_function_of_the_vertex(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((6, 9)).astype(np.float32)
    draws = np.stack([values_of(rounded(x, name, seed)) for seed in range(4000)])
    scales = rounded(x, name).row_scales[:, None] if name == "int8" else compute_column_scales([x], 9, "x")
    # A draw deviates by half a step at most: six standard errors of the mean.
    assert (np.abs(draws.mean(0) - x) <= 6 * 0.5 * scales / np.sqrt(4000)).all()
    assert len(np.unique(draws[:, 0, 0])) == 2
    again = QuantizedRows.allocate(ROW_FORMATS[name], (3, 9), rounded(x, name).column_scales)
    picked = np.array([5, 0, 2])
    Quantizer(ROW_FORMATS[name], 7, again.column_scales).quantize_into(x[picked], picked, again, "x", ALONE)
    assert (again.codes == rounded(x, name, 7).codes[picked]).all()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_is_refused_with_its_vertex(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_features, "CHUNK", 12)  # Blocks of three rows.
    graph = random_graph(vertices=20, features=4)
    graph.features.values[13, 2] = value
    with pytest.raises(DataError, match=r"column 2 of vertex 13 is -?(inf|nan).*must be finite"):
        quantize_graph(graph, name)


@pytest.mark.parametrize(("name", "value"), [("float16", 7e4), ("bfloat16", 3.4e38)])
def test_what_is_too_large_is_refused_with_its_vertex(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_features, "CHUNK", 12)
    graph = random_graph(vertices=20, features=4)
    graph.features.values[13, 2] = value
    with pytest.raises(DataError, match=rf"column 2 of vertex 13 is .*which {name} cannot represent"):
        quantize_graph(graph, name)


def test_sparse_features_are_refused() -> None:
    with pytest.raises(DataError, match="supports only dense features, but these are sparse: remove data"):
        quantize_graph(random_graph(sparse=True), "int8")


def stored(graph: Graph, folder: Path) -> str:
    path = folder / "stored.npz"
    write_npz(from_graph(graph), path)
    return str(path)


def rows_of(graph: Graph) -> np.ndarray:
    out = np.empty((graph.num_vertices, graph.num_features), np.float32)
    graph.features.rows(np.arange(graph.num_vertices), out, ALONE)
    return out


@pytest.mark.parametrize("name", NARROW)
def test_files_keep_codes_and_scales(name: str, tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=5)
    whole, folder, back = tmp_path / "a.npz", tmp_path / "b", tmp_path / "c.npz"
    convert(Conversion(stored(graph, tmp_path), whole, feature_dtype=name))
    convert(Conversion(str(whole), folder))
    convert(Conversion(str(folder), back))
    assert whole.read_bytes() == back.read_bytes()
    wanted = rows_of(quantize_graph(graph, name))
    for path in (whole, folder):
        opened = open_graph(path)
        assert isinstance(opened.features, QuantizedRowSource)
        assert opened.features.row_format.name == name
        assert (rows_of(opened) == wanted).all()
    # In another format again: the numbers are those that were kept.
    convert(Conversion(str(folder), tmp_path / "d.npz", feature_dtype="float32"))
    assert (open_graph(tmp_path / "d.npz").features.values == wanted).all()


def test_a_file_has_the_codes_of_its_seed(tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=5)
    source = stored(graph, tmp_path)
    for seed in (0, 8):
        path = tmp_path / f"{seed}.npz"
        convert(Conversion(source, path, feature_dtype="int8", rounding="stochastic", seed=seed))
        wanted = quantize_graph(graph, "int8", seed).features.all_rows.codes  # type: ignore[attr-defined]
        assert (open_graph(path).features.all_rows.codes == wanted).all()  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="--seed applies only to --rounding stochastic"):
        convert(Conversion(source, tmp_path / "c.npz", feature_dtype="int8", seed=3))


@pytest.mark.parametrize("name", NARROW)
def test_an_order_of_vertices_keeps_the_format(name: str, tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=5)
    convert(Conversion(stored(graph, tmp_path), tmp_path / "a.npz", feature_dtype=name))
    convert(Conversion(str(tmp_path / "a.npz"), tmp_path / "b.npz", order="degree"))
    opened = open_graph(tmp_path / "b.npz")
    assert opened.features.row_format.name == name
    wanted = rows_of(quantize_graph(graph, name))[opened.vertices.vertex_ids]
    assert np.allclose(rows_of(opened), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", CODES)
def test_features_are_scaled_before_they_are_rounded(name: str, tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=5)
    convert(Conversion(stored(graph, tmp_path), tmp_path / "a.npz", feature_dtype=name, normalize="length"))
    rows = rows_of(open_graph(tmp_path / "a.npz"))
    assert np.allclose((rows**2).sum(1), 1, atol=0.03)


def test_rows_in_files_are_rounded_on_the_way_to_the_same(tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=5)
    convert(Conversion(stored(graph, tmp_path), tmp_path / "a"))
    for name in NARROW:
        mapped = quantize_graph(open_graph(tmp_path / "a"), name, 3 if name in CODES else None)
        held = quantize_graph(graph, name, 3 if name in CODES else None)
        assert isinstance(mapped.features, OnTheFlyQuantizedFeatures)
        assert not isinstance(held.features, OnTheFlyQuantizedFeatures)
        ids = np.array([7, 7, 0, 59])
        out = np.empty((4, 5), np.float32)
        mapped.features.rows(ids, out, ALONE)
        assert (out == rows_of(held)[ids]).all()
        codes = QuantizedRows.allocate(ROW_FORMATS[name], (4, 5), mapped.features.column_scales)
        mapped.features.quantized_rows(ids, codes, ALONE)
        assert (codes.codes == held.features.all_rows.codes[ids]).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"'features' has int8 values, which need row_scales \[60\] or column_scales \[5\]: set one"),
        (
            {"row_scales": np.ones(60, np.float32), "column_scales": np.ones(5, np.float32)},
            "'features' has int8 values, which need row_scales",
        ),
        ({"row_scales": np.ones(59, np.float32)}, "'row_scales' has 59 entries, but 'features' needs 60"),
        (
            {"row_scales": np.zeros(60, np.float32)},
            "'row_scales': value 0.0 at position 0 is not a finite",
        ),
        (
            {"column_scales": np.full(5, np.nan, np.float32)},
            "'column_scales': value nan at position 0 is not a finite",
        ),
        ({"column_scales": np.ones(5)}, "'column_scales' has dtype float64, expected float32"),
    ],
)
def test_wrong_scales_are_named(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    convert(
        Conversion(
            stored(random_graph(vertices=60, features=5), tmp_path), tmp_path / "a.npz", feature_dtype="int8"
        )
    )
    with np.load(tmp_path / "a.npz") as held:
        kept = {key: held[key] for key in held if key != "row_scales"}
    np.savez(tmp_path / "b.npz", **kept, **arrays)
    with pytest.raises(DataError, match=message):
        open_graph(tmp_path / "b.npz")


def test_scales_beside_floats_are_refused(tmp_path: Path) -> None:
    convert(Conversion(stored(random_graph(vertices=60, features=5), tmp_path), tmp_path / "a.npz"))
    with np.load(tmp_path / "a.npz") as held:
        np.savez(tmp_path / "b.npz", **held, row_scales=np.ones(60, np.float32))
    with pytest.raises(
        DataError, match=r"'row_scales'.* is only used for int8 features, but these are float32"
    ):
        open_graph(tmp_path / "b.npz")


def test_rows_take_the_bytes_that_their_format_says() -> None:
    graph = random_graph(vertices=50, features=100)
    whole = graph.features.nbytes
    found = {name: quantize_graph(graph, name).features.nbytes / whole for name in NARROW}
    assert found == {
        "float16": 0.5,
        "bfloat16": 0.5,
        "int8": 0.26,
        "int8-columns": 0.25 + 400 / whole,
    }
    assert quantize_graph(graph, "float32") is graph
    assert isinstance(quantize_graph(graph, "float16").features, DenseFeatures)
    assert (INT8.row_bytes(100), INT8_COLUMNS.row_bytes(100)) == (104, 100)


def test_columns_and_rows_are_drawn_apart() -> None:
    x = np.full((40, 40), 10.5, np.float32)
    x[:, 0] = 127
    codes = rounded(x, "int8", 5).codes[:, 1:]
    assert set(np.unique(codes)) == {10, 11}
    assert (codes == 11).mean(0).min() > 0
    assert (codes == 11).mean(1).min() > 0
    assert (codes == 11).mean(0).max() < 1
    assert (codes == 11).mean(1).max() < 1


@pytest.mark.parametrize("name", [*CODES, "bfloat16"])
def test_rows_are_written_block_by_block_like_all_at_once(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((23, 6)).astype(np.float32)
    seed = 9 if name in CODES else None
    wanted = rounded(x, name, seed)
    streamed = FeatureRows.from_blocks(x.shape, x.dtype, lambda: iter([x[:4], x[4:11], x[11:]]))
    rounding = Quantizer(ROW_FORMATS[name], seed, wanted.column_scales)
    written = QuantizedRowWriter.from_rows(replace(streamed, rounding=rounding), "x")
    codes = np.concatenate([block.copy() for block in written.blocks])
    assert (codes.view(wanted.codes.dtype) == wanted.codes).all()
    assert written.scales.keys() == {"int8": {"row_scales"}, "int8-columns": {"column_scales"}}.get(
        name, set()
    )
    if name == "int8":
        assert (written.scales["row_scales"] == wanted.row_scales).all()
