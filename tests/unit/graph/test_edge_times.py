"""Times of edges move with the edges, whatever puts these in order; compared pair by pair."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import run_here

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError
from hyrt.graph.formats.schema import to_graph
from hyrt.graph.graph import Graph
from hyrt.graph.links.edges import is_known_time
from hyrt.graph.partition.read_parts import read_parts
from hyrt.training.open_graph import link_graph, opened_graph

RNG = np.random.default_rng(5)
NUM = 40
# Several edges between two vertices, and loops.
PAIRS = RNG.integers(0, NUM, (300, 2))
TIMES = RNG.permutation(300) * 7 + 100

Times = dict[tuple[int, ...], float]


def geometric() -> Any:
    """PyG's graphs; importing it warns of what torch no longer recommends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")


def earliest(pairs: Any, times: Any, *, undirected: bool = False, loops: bool = True) -> Times:
    found: Times = {}
    for (u, v), time in zip(np.asarray(pairs).tolist(), np.asarray(times).tolist(), strict=True):
        for pair in [(u, v), (v, u)] if undirected else [(u, v)]:
            if loops or u != v:
                found[pair] = min(found.get(pair, np.inf), time)
    return found


def times_of(graph: Graph) -> Times:
    """By original numbers of the vertices, and with the relation of heterogeneous graphs."""
    topology, ids = graph.topology, graph.vertices.vertex_ids
    assert topology.edge_times is not None
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    ends = [each if ids is None else ids[each] for each in (topology.indices, rows)]
    kinds = [] if graph.types is None else [topology.edge_types]
    keys = zip(*(np.asarray(each).tolist() for each in (*kinds, *ends)), strict=True)
    return dict(zip(keys, topology.edge_times.tolist(), strict=True))


def table(folder: Path, column: str, values: list[Any]) -> None:
    rows = [f"{u},{v},{value}" for (u, v), value in zip(PAIRS.tolist(), values, strict=True)]
    (folder / "e.csv").write_text("\n".join([f"src,dst,{column}", *rows, ""]))


DATES = [f"{2000 + t // 1000}-03-{1 + t % 28:02d} 12:{t % 60:02d}:00.{t % 1000:03d}" for t in TIMES.tolist()]
MICROSECONDS = [int(np.datetime64(date.replace(" ", "T"), "us").astype(np.int64)) for date in DATES]
COLUMNS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "whole": ("time", TIMES.tolist(), TIMES.tolist()),
    "fractions": ("timestamp", (TIMES / 8).tolist(), (TIMES / 8).tolist()),
    "nanoseconds": ("ts", [10**18 + 3 * t for t in TIMES.tolist()], [10**18 + 3 * t for t in TIMES.tolist()]),
    "dates": ("Date", DATES, MICROSECONDS),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_a_table_is_found_and_kept(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hyrt.graph.tables.edge_list._READ_EDGES", 50)
    name, written, values = COLUMNS[column]
    table(tmp_path, name, written)
    run_here("data", "import", "e.csv", "-o", "d", cwd=tmp_path)
    assert f"times '{name}'" in capsys.readouterr().out
    graph = hyrt.load(tmp_path / "d")
    assert times_of(graph) == earliest(PAIRS, values)
    run_here("data", "convert", "d", "moved.npz", "--order", "degree", cwd=tmp_path)
    moved = hyrt.load(tmp_path / "moved.npz")
    assert moved.vertices.vertex_ids is not None
    assert times_of(moved) == times_of(graph)
    # The split by time is that of the table, in any order of the vertices.
    links = {"split": "time", "val": 0.1, "test": 0.2}
    config = build_config({"train": {"objective": "links"}, "links": links})
    wanted = sorted((time, pair) for pair, time in earliest(PAIRS, values, loops=False).items())
    latest = {pair for _, pair in wanted[-round(0.2 * len(wanted)) :]}
    for each in (graph, moved):
        split = link_graph(config, each).links
        assert split is not None
        test = split.split.held_out["test"].links
        ids = each.vertices.vertex_ids
        assert {tuple(pair) for pair in (test if ids is None else ids[test]).tolist()} == latest


def test_undirected_rows_have_the_earliest_time_of_both_directions(tmp_path: Path) -> None:
    table(tmp_path, "when", TIMES.tolist())
    schema = "edges: {files: e.csv, source: src, target: dst, time: when, undirected: true}\nfirst_id: 0\n"
    (tmp_path / "s.yaml").write_text(schema)
    run_here("data", "import", "e.csv", "-o", "d.npz", "--schema", "s.yaml", cwd=tmp_path)
    graph = hyrt.load(tmp_path / "d.npz")
    wanted = earliest(PAIRS, TIMES, undirected=True)
    assert times_of(graph) == wanted
    links = {"split": "time", "val": 0.1, "test": 0.2}
    found = link_graph(build_config({"train": {"objective": "links"}, "links": links}), graph).links
    assert found is not None
    test = [wanted[u, v] for u, v in found.split.held_out["test"].links.tolist()]
    assert max(wanted[u, v] for u, v in found.split.train.tolist()) < min(test)


def test_relations_have_times_of_their_own_and_reverses_those_of_their_edges(tmp_path: Path) -> None:
    table(tmp_path, "at", TIMES.tolist())
    (tmp_path / "c.csv").write_text("a,b\n" + "".join(f"{i},{(i * 3) % NUM}\n" for i in range(NUM)))
    (tmp_path / "s.yaml").write_text(
        "target_type: paper\ntypes: {author: {}, paper: {}}\nreverse: true\nrelations:\n"
        "- {relation: [author, writes, paper], files: e.csv, source: src, target: dst, time: at}\n"
        "- {relation: [paper, cites, paper], files: c.csv, source: a, target: b}\n"
    )
    run_here("data", "import", "e.csv", "c.csv", "-o", "d", "--schema", "s.yaml", cwd=tmp_path)
    graph = hyrt.load(tmp_path / "d")
    assert graph.types is not None
    first = graph.types.interval("paper")[0]
    names = [each.name for each in graph.types.relations]
    assert names == ["writes", "cites", "rev_writes"]
    wanted = earliest(PAIRS, TIMES)
    found = times_of(graph)
    assert {key[1:]: time for key, time in found.items() if key[0] == 0} == {
        (u, v + first): time for (u, v), time in wanted.items()
    }
    assert {key[1:]: time for key, time in found.items() if key[0] == 2} == {
        (v + first, u): time for (u, v), time in wanted.items()
    }
    times = graph.topology.edge_times
    assert times is not None
    assert (is_known_time(times) == (graph.topology.edge_types != 1)).all()
    config = {"train": {"objective": "links"}, "model": {"kind": "rsage"}}
    links = {"split": "time", "relation": "writes"}
    split = link_graph(build_config(config | {"links": links}), graph).links
    assert split is not None
    latest = min(wanted[u, v - first] for u, v in split.split.held_out["test"].links.tolist())
    assert max(wanted[u, v - first] for u, v in split.split.train.tolist()) < latest
    with pytest.raises(
        DataError, match=r"72 of 72 edges have no time, such as the edge from vertex \d+ to \d+: add"
    ):
        link_graph(build_config(config | {"links": links | {"relation": "cites"}}), graph)


@pytest.mark.parametrize("key", ["edge_time", "time", "timestamp"])
def test_times_of_pyg_graphs(key: str) -> None:
    masks = {f"{split}_mask": torch.zeros(NUM, dtype=torch.bool) for split in ("train", "val", "test")}
    distinct = np.array(list(earliest(PAIRS, TIMES, loops=False)))
    times = RNG.permutation(len(distinct))
    edges = torch.from_numpy(distinct.T.copy())
    y = torch.zeros(NUM, dtype=torch.int64)
    data = geometric().Data(
        x=torch.ones(NUM, 2), y=y, edge_index=edges, **masks, **{key: torch.from_numpy(times)}
    )
    assert times_of(hyrt.load(data)) == earliest(distinct, times)
    hetero = geometric().HeteroData()
    hetero["paper"].x, hetero["author"].num_nodes = torch.ones(NUM, 2), NUM
    hetero["paper"].y = y
    for name, mask in masks.items():
        hetero["paper"][name] = mask
    hetero["paper", "cites", "paper"].edge_index = edges[:, :20]
    hetero["author", "writes", "paper"].edge_index = edges
    hetero["author", "writes", "paper"][key] = torch.from_numpy(times).double()[:, None]
    found = times_of(hyrt.load(hetero))
    assert {(u - NUM, v): time for (r, u, v), time in found.items() if r == 1} == earliest(distinct, times)
    assert all(np.isnan(time) for (r, *_), time in found.items() if r == 0)
    hetero["author", "writes", "paper"][key] = torch.from_numpy(times[1:])
    with pytest.raises(DataError, match=rf"\.{key} is int64 of shape \[\d+\], expected one time for each of"):
        hyrt.load(hetero)


def test_a_time_for_each_vertex_is_none_of_edges() -> None:
    masks = {f"{split}_mask": torch.zeros(4, dtype=torch.bool) for split in ("train", "val", "test")}
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data = geometric().Data(
        x=torch.ones(4, 2), y=torch.zeros(4, dtype=torch.int64), edge_index=edges, **masks
    )
    data.time = torch.arange(4)
    with pytest.warns(hyrt.errors.DataWarning, match="'time' is not read"):
        assert hyrt.load(data).topology.edge_times is None


def test_parts_keep_the_times(tmp_path: Path) -> None:
    table(tmp_path, "time", TIMES.tolist())
    run_here("data", "import", "e.csv", "-o", "d", cwd=tmp_path)
    for topology in ("replicated", "split"):
        words = ("--parts", "2", "--topology", topology)
        run_here("partition", "--data", "d", "-o", topology, *words, cwd=tmp_path)
        assert times_of(to_graph(read_parts(tmp_path / topology, "p"))) == earliest(PAIRS, TIMES)


def test_rows_that_are_sorted_and_made_unique_take_the_times_along(tmp_path: Path) -> None:
    order = np.argsort(PAIRS[:, 1], kind="stable")
    counts = np.bincount(PAIRS[:, 1], minlength=NUM)
    masks = {f"{split}_mask": np.zeros(NUM, np.bool_) for split in ("train", "val", "test")}
    np.savez(
        tmp_path / "d.npz",
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        indices=PAIRS[order, 0].astype(np.int32),
        edge_time=TIMES[order],
        labels=np.zeros(NUM, np.int64),
        features=np.ones((NUM, 2), np.float32),
        **masks,
    )
    run_here("data", "convert", "d.npz", "e", "--sort", "--unique", cwd=tmp_path)
    assert times_of(hyrt.load(tmp_path / "e")) == earliest(PAIRS, TIMES)


def test_times_in_a_file_are_matched_by_their_edges(tmp_path: Path) -> None:
    table(tmp_path, "other", TIMES.tolist())
    run_here("data", "import", "e.csv", "-o", "d", cwd=tmp_path)
    (tmp_path / "moved").mkdir()
    run_here("data", "convert", "d", "m", "--order", "degree", cwd=tmp_path)
    settings: dict[str, Any] = {"train": {"objective": "links"}, "links": {"split": "time"}}
    with pytest.raises(DataError, match=r"links\.split=time needs the times of the edges, but .* has none"):
        opened_graph(build_config(settings | {"data": {"source": str(tmp_path / "d")}}))
    settings["links"] |= {"times": str(tmp_path / "t.npz"), "test": 0.2}
    np.savez(tmp_path / "t.npz", edges=PAIRS, times=TIMES)
    wanted = earliest(PAIRS, TIMES, loops=False)
    for name in ("d", "m"):
        graph = opened_graph(build_config(settings | {"data": {"source": str(tmp_path / name)}}))
        assert graph.links is not None
        ids = graph.vertices.vertex_ids
        test, train = (
            [wanted[u, v] for u, v in (pairs if ids is None else ids[pairs]).tolist()]
            for pairs in (graph.links.split.held_out["test"].links, graph.links.split.train)
        )
        assert max(train) < min(test)
    config = build_config(settings | {"data": {"source": str(tmp_path / "d")}})
    np.savez(tmp_path / "t.npz", edges=PAIRS[1:], times=TIMES[1:])
    with pytest.raises(
        DataError, match=r"t\.npz: \d of \d+ edges have no time, such as the edge from vertex"
    ):
        opened_graph(config)
    np.savez(tmp_path / "t.npz", edges=PAIRS)
    with pytest.raises(DataError, match=r"must be a \.npz file with edges \[n, 2\] and times \[n\]: times"):
        opened_graph(config)
    np.save(tmp_path / "t.npy", TIMES)
    links = settings["links"] | {"times": str(tmp_path / "t.npy")}
    with pytest.raises(
        DataError, match="is a single array, which does not say to which edges its times belong"
    ):
        opened_graph(build_config({**settings, "links": links, "data": {"source": str(tmp_path / "d")}}))
    table(tmp_path, "time", TIMES.tolist())
    run_here("data", "import", "e.csv", "-o", "own", cwd=tmp_path)
    np.savez(tmp_path / "t.npz", edges=PAIRS, times=TIMES)
    with pytest.raises(ConfigError, match=r"already have times: remove links\.times"):
        opened_graph(build_config(settings | {"data": {"source": str(tmp_path / "own")}}))
    with pytest.raises(ConfigError, match=r"has no effect with links\.split=random"):
        build_config({"links": {"times": "t.npz"}})


def test_what_is_no_time_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,when\n0,1,5\n1,2,\n2,3,soon\n3,0,2020-01-01\n")
    (tmp_path / "s.yaml").write_text("edges: {files: e.csv, source: src, target: dst, time: when}\n")
    with pytest.raises(DataError) as told:
        run_here("data", "import", "e.csv", "-o", "d", "--schema", "s.yaml", cwd=tmp_path)
    assert "line 3, column 'when': the value is missing" in str(told.value)
    for line in (4, 5):
        assert re.search(rf"line {line}, .* is not a time in the format of the first one", str(told.value))
    assert not (tmp_path / "d").exists()


DAYS = RNG.permutation(90)[:45] - 40
"""Days since 1970, some before, one per edge i -> i + 1 of the tables below."""
DAY = 86_400
UNITS: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def write_times(file: Path, kind: str, days: Any, first: int) -> Path:
    """Write a table whose edges i -> i + 1, from i = `first` on, have days as their times, in one format."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    src = np.arange(first, first + len(days))
    if kind.startswith("text"):
        dates = [str(np.datetime64(int(day), "D")) for day in days]
        dates = [f"{date} 03:00:00+03:00" if kind == "text with zone" else date for date in dates]
        rows = [f"{u},{u + 1},{date}" for u, date in zip(src.tolist(), dates, strict=True)]
        file = file.with_suffix(".csv")
        file.write_text("\n".join(["src,dst,time", *rows, ""]))
        return file
    unit, _, zone = kind.partition(" ")
    if unit.startswith("date"):
        column = pa.array(days.astype(np.int32), pa.date32())
        column = column.cast(pa.date64()) if unit == "date64" else column
    else:
        column = pa.array(days * DAY * UNITS[unit], pa.timestamp(unit, tz=zone or None))
    parquet.write_table(pa.table({"src": src, "dst": src + 1, "time": column}), file)
    return file


FORMATS = ["ns", "us", "ms", "s", "us Europe/Berlin", "date32", "date64", "text", "text with zone"]


@pytest.mark.parametrize("are_relations", [False, True], ids=["files", "relations"])
def test_times_in_all_units_are_on_one_scale(
    are_relations: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e").mkdir()
    files = [
        write_times(tmp_path / "e" / f"{number}.parquet", kind, DAYS[5 * number : 5 * number + 5], 5 * number)
        for number, kind in enumerate(FORMATS)
    ]
    config: dict[str, Any] = {"train": {"objective": "links"}, "links": {"split": "time", "test": 0.2}}
    if are_relations:
        relations = [
            f"- {{relation: [v, r{number}, v], files: {file.name}, source: src, target: dst, time: time}}"
            for number, file in enumerate(files)
        ]
        schema = ["target_type: v", f"types: {{v: {{num_vertices: {len(DAYS) + 1}}}}}", "relations:"]
        (tmp_path / "s.yaml").write_text("\n".join([*schema, *relations, ""]))
        words = [*(f"e/{file.name}" for file in files), "--schema", "s.yaml"]
    else:
        words = ["e"]
    run_here("data", "import", *words, "-o", "d", cwd=tmp_path)
    said = capsys.readouterr().out
    assert "times: dates, stored in microseconds since 1970 (UTC)" in said
    assert re.search(
        r"some times have a time zone \(.*4\.parquet, .*\), and others have none \(.*0\.parq", said
    )
    assert "rounded" not in said
    graph = hyrt.load(tmp_path / "d")
    wanted = {(u, u + 1): day * DAY * 10**6 for u, day in enumerate(DAYS.tolist())}
    assert {key[-2:]: time for key, time in times_of(graph).items()} == wanted
    assert graph.topology.edge_times is not None
    assert graph.topology.edge_times.dtype == np.int64
    if not are_relations:
        links = link_graph(build_config(config), graph).links
        assert links is not None
        latest = sorted(wanted, key=wanted.__getitem__)[-9:]
        assert {(u, v) for u, v in links.split.held_out["test"].links.tolist()} == set(latest)


def test_dates_finer_than_microseconds_are_rounded_down_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = [-1, 1_999, 2_000, -1_000]
    table = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0], "time": pa.array(times, pa.timestamp("ns"))}
    parquet.write_table(pa.table(table), tmp_path / "e.parquet")
    run_here("data", "import", "e.parquet", "-o", "d", cwd=tmp_path)
    assert "e.parquet, column 'time': 2 times rounded down to microseconds" in capsys.readouterr().out
    assert times_of(hyrt.load(tmp_path / "d")) == {(0, 1): -1, (1, 2): 1, (2, 3): 2, (3, 0): -1}
    dates = ["1969-12-31 23:59:59.9999995", "1970-01-01 00:00:00.000001999", "1970-01-01 00:00:00.000002000"]
    rows = [f"{u},{u + 1},{date}" for u, date in enumerate(dates)]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,time", *rows, ""]))
    run_here("data", "import", "e.csv", "-o", "f", cwd=tmp_path)
    assert "e.csv, column 'time': 2 times rounded down to microseconds" in capsys.readouterr().out
    assert times_of(hyrt.load(tmp_path / "f")) == {(0, 1): -1, (1, 2): 1, (2, 3): 2}


SECONDS = [1_600_000_000, 1_600_000_001]
MIXED: dict[str, tuple[list[Any], list[Any], str]] = {
    "numbers beside dates": (
        ["2024-05-31"] * 2,
        [5, 6],
        r"'5' is not a time .* \(a date in .*1\.csv, column",
    ),
    "milliseconds beside dates": (["2024-05-31"] * 2, [1082040961000] * 2, r"'1082040961000' is not a time"),
    "days beside dates": (["2024-05-31"] * 2, [20240601] * 2, r"'20240601' is not a time"),
    "dates beside numbers": ([5, 6], ["2024-05-31"] * 2, r"'2024-05-31' is not a time .* \(a number in"),
    "fractions beside large integers": (
        [2**60, 2**60 + 1],
        [0.5, 1.5],
        r"'0.5' is not a time .* \(an integer",
    ),
    "large integers beside small ones": ([0, 1], [2**53 + 1, 4], r"'9007199254740993' is out of range"),
    "milliseconds beside seconds": (
        SECONDS,
        [1000 * time for time in SECONDS],
        r"2\.csv, line 2, column 'time': 1600000000000 looks like milliseconds since 1970, but other times "
        r"look like seconds, such as 1600000000 in .*1\.csv, line 2, [^ ]* 'time'\n.*2\.csv, line 3",
    ),
    "milliseconds in the last row of seconds": (
        [0, 9_999_999_999, *SECONDS],
        [*SECONDS, -5, 1000 * SECONDS[0] + 123],
        r"2\.csv, line 5, column 'time': 1600000000123 looks like milliseconds since 1970",
    ),
    "seconds beside nanoseconds": (
        [10**9 * time + 1 for time in SECONDS],
        [10**9 * time for time in SECONDS] + SECONDS[:1],
        r"2\.csv, line 4, column 'time': 1600000000 looks like seconds since 1970, but .* nanoseconds",
    ),
    "the marker of unknown times": ([2**60, 2**60], [-(2**63), 5], r"'-9223372036854775808' is out of range"),
}


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("are_relations", [False, True], ids=["files", "relations"])
def test_times_on_several_scales_are_refused(are_relations: bool, case: str, tmp_path: Path) -> None:
    *columns, message = MIXED[case]
    for number, values in enumerate(columns):
        rows = [f"{u + 2 * number},{u + 2 * number + 1},{value}" for u, value in enumerate(values)]
        (tmp_path / f"{number + 1}.csv").write_text("\n".join(["src,dst,time", *rows, ""]))
    entry = "source: src, target: dst, time: time"
    schema = f"edges: {{files: ['*.csv'], {entry}}}\n"
    if are_relations:
        schema = "target_type: v\ntypes: {v: {}}\nrelations:\n"
        schema += "".join(f"- {{relation: [v, r{n}, v], files: {n}.csv, {entry}}}\n" for n in (1, 2))
    (tmp_path / "s.yaml").write_text(schema)
    with pytest.raises(DataError, match=message):
        run_here("data", "import", "1.csv", "2.csv", "-o", "d", "--schema", "s.yaml", cwd=tmp_path)
    assert not (tmp_path / "d").exists()


def test_counters_that_cover_the_ranges_of_units_are_kept(tmp_path: Path) -> None:
    times = [10**digits * 2 for digits in range(3, 15)]
    rows = [f"{u},{u + 1},{time}" for u, time in enumerate(times)]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,time", *rows, ""]))
    run_here("data", "import", "e.csv", "-o", "d", cwd=tmp_path)
    assert times_of(hyrt.load(tmp_path / "d")) == {(u, u + 1): time for u, time in enumerate(times)}


def test_dates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    largest = 2**63 // 10**6
    columns = {
        "s": pa.array([largest, largest + 1, -largest, -largest - 1], pa.timestamp("s")),
        "ms": pa.array([2**62, -(2**62), 5, 2**63 - 1], pa.timestamp("ms")),
        "us": pa.array([2**63 - 1, 1 - 2**63, 2 - 2**63, 2**63 - 2], pa.timestamp("us")),
        "date32": pa.array([2**31 - 1, 0, 106_751_991, 106_751_992], pa.date32()),
        "date64": pa.array([0, 86_400_000 * 10**10, 0, -86_400_000 * 10**10], pa.date64()),
    }
    wrong_rows = {"s": [2, 4], "ms": [1, 2, 4], "us": [1, 2], "date32": [1, 4], "date64": [2, 4]}
    (tmp_path / "s.yaml").write_text("edges: {files: e.parquet, source: src, target: dst, time: time}\n")
    for name, column in columns.items():
        table = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0], "time": column}
        parquet.write_table(pa.table(table), tmp_path / "e.parquet")
        with pytest.raises(DataError) as told:
            run_here("data", "import", "e.parquet", "-o", "d", "--schema", "s.yaml", cwd=tmp_path)
        lines = re.findall(r"row (\d), column 'time': .* is out of range", str(told.value))
        assert list(map(int, lines)) == wrong_rows[name]


def test_an_empty_first_file_does_not_fix_the_format(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "0.csv").write_text("src,dst,time\n")
    (tmp_path / "e" / "1.csv").write_text("src,dst,time\n0,1,1970-01-02\n")
    run_here("data", "import", "e", "-o", "d", cwd=tmp_path)
    assert times_of(hyrt.load(tmp_path / "d")) == {(0, 1): DAY * 10**6}
