from __future__ import annotations

import itertools
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_datasets import assert_holds, make_arrays, real_file, save
from graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from typer.testing import CliRunner

from hyrt.cli.data import data_app
from hyrt.errors import DataError, DataWriteError
from hyrt.graph import open_graph
from hyrt.graph.formats import reorder as row_order
from hyrt.graph.formats.convert import Conversion, convert, memory_bound
from hyrt.graph.info import summarize_graph
from hyrt.graph.normalize import NORMALIZERS
from hyrt.graph.topology import Topology
from hyrt.runtime.files import atomic_output

run = CliRunner()


def _left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_dtype(tmp_path):
    arrays = make_arrays(1)
    source = str(save(arrays, tmp_path / "a.npz"))
    convert(Conversion(source, tmp_path / "half", feature_dtype="float16"))
    assert_holds(open_graph(tmp_path / "half"), arrays | {"features": arrays["features"].astype(np.float16)})
    arrays["features"][4, 2] = 1e6
    source = str(save(arrays, tmp_path / "big.npz"))
    with pytest.raises(DataError, match=r"value 1000000.0 at row 4, column 2 is beyond float16's 65,504"):
        convert(Conversion(source, tmp_path / "b", feature_dtype="float16"))
    source = str(save(make_arrays(1, sparse=True), tmp_path / "sparse.npz"))
    with pytest.raises(DataError, match="sparse features are always float32"):
        convert(Conversion(source, tmp_path / "b", feature_dtype="float16"))
    with pytest.raises(
        DataError,
        match="--feature-dtype int4 is unknown: use float32, float16, bfloat16, int8 or int8-columns",
    ):
        convert(Conversion(source, tmp_path / "b", feature_dtype="int4"))
    assert _left(tmp_path) == ["a.npz", "big.npz", "half", "sparse.npz"]


@pytest.mark.parametrize("sparse", [False, True])
def test_normalized_on_disk_equals_on_opening(tmp_path, sparse):
    source = save(make_arrays(2, sparse=sparse), tmp_path / "a.npz")
    for way in ["row"] if sparse else ["row", "standard"]:
        convert(Conversion(str(source), tmp_path / way, normalize=way))
        np.testing.assert_array_equal(
            open_graph(tmp_path / way).features.values, open_graph(source, normalize=way).features.values
        )


@pytest.mark.parametrize("name", ["out", "out.npz"])
def test_nothing_is_left_behind(tmp_path, name):
    arrays = make_arrays(3)
    arrays["features"][20, 3] = np.nan
    source = str(save(arrays, tmp_path / "a"))
    with pytest.raises(DataError, match="value nan at row 20, column 3 is not finite"):
        convert(Conversion(source, tmp_path / name))
    assert _left(tmp_path) == ["a"]
    good = str(save(make_arrays(3), tmp_path / "good.npz"))
    convert(Conversion(good, tmp_path / name))
    before = open_graph(tmp_path / name)
    with pytest.raises(DataError, match="already exists: choose another name, or use --force to replace it"):
        convert(Conversion(good, tmp_path / name))
    with pytest.raises(DataError, match="not finite"):
        convert(Conversion(source, tmp_path / name, force=True))
    np.testing.assert_array_equal(open_graph(tmp_path / name).topology.indices, before.topology.indices)
    convert(Conversion("synthetic:tiny", tmp_path / name, force=True))
    assert open_graph(tmp_path / name, check=True).num_vertices == 2000
    assert _left(tmp_path) == sorted(["a", "good.npz", name])
    with pytest.raises(DataError, match=r"the folder .* does not exist"):
        convert(Conversion(good, tmp_path / "none" / "x"))


def test_force_deletes_datasets_only(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "notes").write_text("dear")
    for name, force in itertools.product(("home", "notes"), (True, False)):
        with pytest.raises(
            DataError, match="not a dataset, and --force replaces only datasets: choose another"
        ):
            convert(Conversion("synthetic:tiny", tmp_path / name, force=force))
    with pytest.raises(DataError, match=r"^-: hyrt cannot write a dataset to standard output: use the "):
        convert(Conversion("synthetic:tiny", tmp_path / "-"))
    assert _left(tmp_path) == ["home", "notes"]
    with pytest.raises(DataError, match="cannot be written"):
        convert(Conversion("synthetic:tiny", tmp_path / ("x" * 255)))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(13, "Permission denied"), "choose a destination in a folder that you may write to"),
        (OSError(28, "No space left on device"), "free some space, or choose a destination on another disk"),
    ],
)
def test_what_to_do_depends_on_why_nothing_can_be_written(tmp_path, error, remedy):
    says = rf"x cannot be written \({error.strerror}\): {remedy}$"
    with pytest.raises(DataWriteError, match=says), atomic_output(tmp_path / "x", "dataset"):
        raise error
    assert _left(tmp_path) == []


def test_damaged_source(tmp_path):
    whole = save(make_arrays(4), tmp_path / "a.npz").read_bytes()
    start = whole.rindex(b"PK\x01\x02")
    for damaged in (whole[:start] + b"XX" + whole[start + 2 :], whole[: len(whole) // 2], b""):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.npz is damaged or truncated"):
            convert(Conversion(str(tmp_path / "a.npz"), tmp_path / "b"))
    assert _left(tmp_path) == ["a.npz"]


def test_source_may_be_the_destination(tmp_path):
    arrays = make_arrays(4)
    save(arrays, tmp_path / "a")
    convert(Conversion(str(tmp_path / "a"), tmp_path / "a", feature_dtype="float16", force=True))
    assert_holds(
        open_graph(tmp_path / "a", check=True), arrays | {"features": arrays["features"].astype(np.float16)}
    )


def test_ctrl_c_leaves_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from hyrt.graph.formats.convert import Conversion, convert\n"
        "spec = 'synthetic:community,vertices=1M,edges=4M,features=500'\n"
        "convert(Conversion(spec, Path(sys.argv[1]) / 'x.npz'), "
        "lambda line: print(line, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline().startswith(b"memory: at most")
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob(".x.npz.*.partial/result")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert b"KeyboardInterrupt" in errors
    assert _left(tmp_path) == []


def test_memory_stays_below_the_printed_bound(tmp_path):
    # Features of 190 MiB pass through; a bound above them would prove nothing.
    spec = "synthetic:tiny,vertices=100k,edges=200k,features=1000"
    for source, destination in [
        (spec, "half"),
        (str(tmp_path / "half"), "b.npz"),
        (str(tmp_path / "b.npz"), "c"),
    ]:
        tracemalloc.start()
        convert(Conversion(source, tmp_path / destination, feature_dtype="float16"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < memory_bound(source)
        assert memory_bound(source) < 450 << 20
    assert open_graph(tmp_path / "half").features.values.nbytes == 200_000_000


def test_memory_with_features_stored_by_columns(tmp_path):
    count = 100_000
    arrays = make_arrays(1, vertices=4)
    values = np.random.default_rng(0).random((300, count), np.float32).T
    arrays |= {
        "indptr": np.zeros(count + 1, np.int64),
        "indices": np.empty(0, np.int32),
        "labels": np.zeros(count, np.int16),
        "features": values,
    }
    arrays |= {f"{split}_mask": np.zeros((count, 40), np.bool_, "F") for split in ("train", "val", "test")}
    source = tmp_path / "columns.npz"
    np.savez(source, **arrays)
    tracemalloc.start()
    convert(Conversion(str(source), tmp_path / "a"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bound = memory_bound(str(source))
    assert peak < bound
    assert bound < 2 * values.nbytes  # which is what turning them in memory takes
    assert _left(tmp_path) == ["a", "columns.npz"]
    np.testing.assert_array_equal(open_graph(tmp_path / "a").features.values, values)


def test_bound_of_sparse_values_that_are_scaled(tmp_path):
    arrays = make_arrays(1, vertices=60, width=50, sparse=True)
    save(arrays, tmp_path / "a")
    save(make_arrays(1), tmp_path / "b")
    both = [memory_bound(str(tmp_path / name)) for name in "ab"]
    assert both[0] - both[1] >= arrays["feat_values"].nbytes


@pytest.mark.parametrize("name", ["out", "out.npz"])
def test_what_cannot_be_replaced_is_put_back(tmp_path, monkeypatch, name):
    arrays = make_arrays(5)
    source = str(save(arrays, tmp_path / "source"))
    convert(Conversion(source, tmp_path / name))
    rename, broken = Path.rename, ["result"]

    def fail(self, target):
        if self.name in broken or self.suffix in broken:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(DataError, match=r"cannot be written \(No space left"):
        convert(Conversion("synthetic:tiny", tmp_path / name, force=True))
    assert _left(tmp_path) == [name, "source"]
    assert_holds(open_graph(tmp_path / name), arrays)

    broken.append(".old")
    with pytest.raises(DataError, match=r"the old dataset is now .*\.old: rename it back"):
        convert(Conversion("synthetic:tiny", tmp_path / name, force=True))
    (kept,) = tmp_path.glob("*.old")
    assert _left(tmp_path) == [kept.name, "source"]
    monkeypatch.undo()
    kept.rename(tmp_path / name)
    assert_holds(open_graph(tmp_path / name), arrays)


def test_info(tmp_path):
    source = real_file("cora.npz")
    result = run.invoke(data_app, ["info", str(source)])
    assert result.exit_code == 0
    for text in (
        "2,708",
        "10,556 directed",
        "sparse 1,433 wide",
        "49,216 entries",
        "max 168",
        "classes    7: ",
    ):
        assert text in result.output
    result = run.invoke(data_app, ["info", "--json", str(source)])
    facts = json.loads(result.output)
    assert facts["splits"] == {"train": [140], "val": [500], "test": [1000]}
    assert facts["degree"]["isolated"] == 0
    assert sum(facts["class_counts"]) == 2708


def test_a_vertex_that_edges_lead_from_is_not_isolated() -> None:
    graph = random_graph(3)
    # 1 -> 0, and nothing at 2.
    edges = Topology(np.array([0, 1, 1, 1]), np.array([1], np.int32))
    assert summarize_graph(replace(graph, topology=edges))["degree"]["isolated"] == 1


def test_commands(tmp_path):
    folder, file = str(tmp_path / "a"), str(tmp_path / "a.npz")
    result = run.invoke(data_app, ["generate", "tiny,seed=4", folder])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("memory: at most")
    result = run.invoke(
        data_app, ["convert", folder, file, "--feature-dtype", "float16", "--normalize", "standard"]
    )
    assert result.exit_code == 0, result.output
    assert run.invoke(data_app, ["info", "--check", folder]).exit_code == 0
    assert open_graph(file).features.values.dtype == np.float16
    for option, value, choices in (
        ("--feature-dtype", "int4", "float32, float16, bfloat16, int8 or int8-columns"),
        ("--normalize", "foo", f"{', '.join(NORMALIZERS[:-1])} or {NORMALIZERS[-1]}"),
    ):
        wrong = run.invoke(data_app, ["convert", folder, str(tmp_path / "b"), option, value])
        assert str(wrong.exception) == f"{option} {value} is unknown: use {choices}"
        assert wrong.output == ""
    again = run.invoke(data_app, ["convert", folder, file])
    assert isinstance(again.exception, DataError)
    assert again.exception.exit_code == 2


def test_importing_the_commands_is_cheap():
    modules = "hyrt.cli.data, hyrt.cli.partition, hyrt.graph"
    code = f"import sys, {modules}; print({{'numpy', 'numba', 'torch'}} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"


@st.composite
def untidy(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """A dataset whose rows are in any order, with repeats."""
    count, width = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    arrays = make_arrays(draw(st.integers(0, 99)), vertices=count, width=width, sparse=draw(st.booleans()))

    def rows(bound: int) -> list[list[int]]:
        row = st.lists(st.integers(0, bound - 1), max_size=8)
        return draw(st.lists(row, min_size=count, max_size=count))

    def fill(pointer: str, columns: str, table: list[list[int]]) -> None:
        arrays[pointer] = np.cumsum([0, *map(len, table)])
        arrays[columns] = np.array([entry for row in table for entry in row], np.int32)

    fill("indptr", "indices", rows(count))
    if "feat_indptr" in arrays:
        fill("feat_indptr", "feat_indices", rows(width))
        values = st.integers(-9, 9).map(np.float32)
        size = len(arrays["feat_indices"])
        arrays["feat_values"] = draw(hnp.arrays(np.float32, size, elements=values))
    return arrays


def put_in_order(arrays: dict[str, np.ndarray], sort: bool, unique: bool) -> dict[str, np.ndarray]:
    """The same by dictionaries and lists, one row after the other."""
    result = dict(arrays)
    for pointer, columns, values in (
        ("indptr", "indices", ""),
        ("feat_indptr", "feat_indices", "feat_values"),
    ):
        if pointer not in arrays:
            continue
        lengths, new_columns, new_values = [0], [], []
        for first, last in itertools.pairwise(arrays[pointer]):
            row = [
                (int(arrays[columns][e]), float(arrays[values][e]) if values else 0.0)
                for e in range(first, last)
            ]
            if sort:
                row.sort(key=lambda entry: entry[0])
            kept: list[tuple[int, float]] = []
            for column, value in row:
                if unique and kept and kept[-1][0] == column:
                    kept[-1] = (column, kept[-1][1] + value)
                else:
                    kept.append((column, value))
            lengths.append(len(kept))
            new_columns += [column for column, _ in kept]
            new_values += [value for _, value in kept]
        result[pointer] = np.cumsum(lengths)
        result[columns] = np.array(new_columns, np.int32)
        if values:
            result[values] = np.array(new_values, np.float32)
    return result


def _is_tidy(arrays: dict[str, np.ndarray]) -> bool:
    return all(
        np.all(np.diff(arrays[columns][first:last]) > 0)
        for pointer, columns in (("indptr", "indices"), ("feat_indptr", "feat_indices"))
        if pointer in arrays
        for first, last in itertools.pairwise(arrays[pointer])
    )


@settings(max_examples=150, deadline=None)
@given(
    untidy(), st.booleans(), st.booleans(), st.sampled_from(["a.npz", "a"]), st.sampled_from([1, 5, 1 << 21])
)
def test_rows_in_order_against_lists(arrays, sort, unique, name, entries):
    expected = put_in_order(arrays, sort, unique)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "RANGE_ENTRIES", entries)
        source, written = save(arrays, Path(folder) / name), Path(folder) / "b"
        job = Conversion(str(source), written, sort=sort, unique=unique)
        if not _is_tidy(expected):
            with pytest.raises(DataError, match="strictly increasing: sort them with hyrt data convert "):
                convert(job)
            return
        convert(job)
        assert_holds(open_graph(written, check=True), expected)
        # The source is mapped, but never written to.
        assert_holds_raw(source, arrays)


def assert_holds_raw(source: Path, arrays: dict[str, np.ndarray]) -> None:
    for key, array in arrays.items():
        stored = np.load(source)[key] if source.is_file() else np.load(source / f"{key}.npy")
        np.testing.assert_array_equal(stored, array)


def test_the_command_in_the_error_mends_the_file(tmp_path):
    arrays = make_arrays(4)
    arrays["indices"] = arrays["indices"][::-1].copy()
    source = save(arrays, tmp_path / "my graph.npz")
    with pytest.raises(
        DataError, match=r"hyrt data convert '.*my graph.npz' DESTINATION --sort --unique"
    ) as caught:
        open_graph(source)
    command = str(caught.value).partition("sort them with hyrt data ")[2]
    mended = tmp_path / "mended.npz"
    done = run.invoke(data_app, shlex.split(command.replace("DESTINATION", shlex.quote(str(mended)))))
    assert done.exit_code == 0, done.output
    assert_holds(open_graph(mended), put_in_order(arrays, True, True))


def test_memory_of_rows_put_in_order(tmp_path):
    count, edges = 50_000, 8_000_000
    rng = np.random.default_rng(0)
    arrays = make_arrays(1, vertices=4) | {
        "indptr": np.linspace(0, edges, count + 1).astype(np.int64),
        "indices": rng.integers(0, count, edges, np.int32),
        "labels": np.zeros(count, np.int16),
        "features": np.zeros((count, 1), np.float32),
    }
    arrays |= {f"{split}_mask": np.zeros(count, np.bool_) for split in ("train", "val", "test")}
    source = str(save(arrays, tmp_path / "a"))
    tracemalloc.start()
    convert(Conversion(source, tmp_path / "b", sort=True, unique=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < memory_bound(source, reorder=True)
    # What is put in order at once does not grow with the graph.
    assert memory_bound(source, reorder=True) - memory_bound(source) < 140 << 20
    matrix = sparse.csr_matrix((np.ones(edges, np.int32), arrays["indices"], arrays["indptr"]))
    matrix.sum_duplicates()
    graph = open_graph(tmp_path / "b")
    np.testing.assert_array_equal(graph.topology.indptr, matrix.indptr)
    np.testing.assert_array_equal(graph.topology.indices, matrix.indices)


@pytest.mark.parametrize("name", ["x.csv", "x.NPZ", "x.pt", "x.h5"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(
        DataError, match=rf"{name}: hyrt writes .npz files and folders of .npy files: use a name"
    ):
        convert(Conversion("synthetic:tiny", tmp_path / name))
    assert not _left(tmp_path)
    convert(Conversion("synthetic:tiny,vertices=40", tmp_path / "v1.2"))
    assert (tmp_path / "v1.2").is_dir()
