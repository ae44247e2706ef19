"""Compare partitioning methods by communication volume, balance and cost in a Markdown table.

    python tools/partitions/compare.py --data coauthor_physics.npz --parts 4,16,64,256
    python tools/partitions/compare.py --data grid:1000 --parts 64 --methods metis,volume
    python tools/partitions/compare.py --data physics.npz --parts 64 --mtkahypar VENV/bin/python

`--data` is any source that `hyrt partition` accepts, or `grid:N`, a generated road-like graph: N x N
crossings, with a tenth of the streets missing and a short shortcut per 50 crossings.

`metis` and `metis-volume` are pymetis with its cut and its volume objective, and with the number of non-zeros
(in-degree + 1) as the weight of a vertex. `mtkahypar` partitions the hypergraph whose nets are the columns by
km1 (exactly the total volume) within 5 %, and needs a Python interpreter with mtkahypar. Every method runs in
a separate process. CPU seconds include all threads. Memory is the peak of the process minus its memory after
reading the graph and compiling functions; the process of METIS counts in full, with its interpreter.

In the table, rows are those that all parts send in one full-graph SpMM, the largest number is the maximum
that any part sends or receives, and imbalance is maximum / mean - 1.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.manifest import compute_imbalance
from hyrt.graph.partition.metis_parts import fill_empty_parts
from hyrt.graph.partition.metis_process import run_metis
from hyrt.graph.partition.registry import METHODS, get_partition_method
from hyrt.graph.source import open_dataset
from hyrt.graph.topology import Topology

METIS_VOLUME, MTKAHYPAR = "metis-volume", "mtkahypar"
# Allowed imbalance of the part weights of Mt-KaHyPar, as in `volume`.
EPSILON = 0.05
MIB = 1 << 20

_BY_KM1 = """
import json, resource, sys
import mtkahypar
path, parts, epsilon, seed, threads = sys.argv[1:]
machine = mtkahypar.initialize(int(threads))
mtkahypar.set_seed(int(seed))
context = machine.context_from_preset(mtkahypar.PresetType.DEFAULT)
context.set_partitioning_parameters(int(parts), float(epsilon), mtkahypar.Objective.KM1)
context.logging = False
graph = machine.hypergraph_from_file(path, context)
before = resource.getrusage(resource.RUSAGE_SELF)
homes = graph.partition(context).get_partition()
after = resource.getrusage(resource.RUSAGE_SELF)
seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
with open(path + ".homes", "w") as file:
    memory = (after.ru_maxrss - before.ru_maxrss) << 10
    json.dump({"homes": list(homes), "cpu_s": seconds, "memory_bytes": memory}, file)
"""


def read_topology(data: str) -> Topology:
    if data.startswith("grid:"):
        return road_grid(int(data.removeprefix("grid:")))
    with tempfile.TemporaryDirectory() as scratch:
        arrays = open_dataset(data, Path(scratch)).arrays
        return Topology(np.array(arrays["indptr"]), np.array(arrays["indices"]))


def road_grid(side: int) -> Topology:
    """Generate a road-like grid graph: a grid with missing streets and a few shortcuts."""
    rng = np.random.default_rng(0)
    count = side * side
    numbers = np.arange(count).reshape(side, side)
    right = np.stack([numbers[:, :-1].ravel(), numbers[:, 1:].ravel()])
    down = np.stack([numbers[:-1].ravel(), numbers[1:].ravel()])
    streets = np.concatenate([right, down], axis=1)
    streets = streets[:, rng.random(streets.shape[1]) >= 0.1]
    x, y = rng.integers(0, side, (2, count // 50))
    dx, dy = rng.integers(-8, 9, (2, count // 50))
    near = numbers[np.clip(y + dy, 0, side - 1), np.clip(x + dx, 0, side - 1)]
    edges = np.concatenate([streets, np.stack([numbers[y, x], near])], axis=1)
    edges = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    into, sources = edges[:, edges[0] != edges[1]]
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(into, minlength=count), out=indptr[1:])
    return Topology(indptr, sources.astype(np.int32))


def part_by(method: str, topology: Topology, num_parts: int, seed: int) -> NDArray[Any]:
    """Return a method's partition of a graph, without regard to training vertices."""
    if method == METIS_VOLUME:
        return by_metis_volume(topology, num_parts, seed)
    nobody = np.zeros(topology.num_vertices, np.bool_)
    return get_partition_method(method).homes(topology, nobody, num_parts, seed)


def by_metis_volume(topology: Topology, num_parts: int, seed: int) -> NDArray[Any]:
    if not topology.is_symmetric:
        raise SystemExit("metis-volume needs each edge in both directions: use a symmetric graph")
    weights = topology.in_degrees.astype(np.int64) + 1
    parts = run_metis(topology.indptr, topology.indices, weights, num_parts, seed=seed, niter=10, objtype=1)
    return fill_empty_parts(parts, weights, num_parts)


def measure_here(data: str, method: str, num_parts: int, seed: int) -> dict[str, Any]:
    """Measure one method in this process."""
    topology = read_topology(data)
    part_by(method, road_grid(20), 4, seed)
    _ = topology.is_symmetric, topology.in_degrees
    before, taken = used_seconds(), resident_bytes()
    homes = part_by(method, topology, num_parts, seed)
    seconds = used_seconds() - before
    peaks = [
        resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    # METIS runs in a separate process, while this process has little more than the graph in memory.
    memory = max(0, peaks[0] - taken, peaks[1])
    return {"cpu_s": seconds, "memory_bytes": memory, **partition_metrics(topology, homes, num_parts)}


def used_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure_mtkahypar(data: str, python: str, num_parts: int, seed: int, threads: int) -> dict[str, Any]:
    """Measure Mt-KaHyPar, which reads the hypergraph from a file."""
    topology = read_topology(data)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "columns.hgr"
        write_columns(topology, path)
        command = [python, "-c", _BY_KM1, str(path), str(num_parts), str(EPSILON), str(seed), str(threads)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(path.with_name("columns.hgr.homes").read_text())
    homes = np.asarray(found.pop("homes"))
    return found | partition_metrics(topology, homes, num_parts)


def write_columns(topology: Topology, path: Path) -> None:
    """Write the hypergraph in hMETIS's format: a net connects a vertex with the destinations of its edges."""
    count = topology.num_vertices
    into = np.repeat(np.arange(count), topology.in_degrees)
    order = np.argsort(topology.indices, kind="stable")
    ends = np.cumsum(np.bincount(topology.indices, minlength=count))
    nets = np.split(into[order] + 1, ends[:-1])
    with path.open("w") as file:
        file.write(f"{count} {count} 10\n")
        for vertex, net in enumerate(nets, 1):
            pins = net[net != vertex].tolist()
            file.write(" ".join(map(str, [vertex, *pins])) + "\n")
        file.write("\n".join(map(str, (topology.in_degrees + 1).tolist())) + "\n")


def partition_metrics(topology: Topology, homes: NDArray[Any], num_parts: int) -> dict[str, Any]:
    needed = count_block_volumes(topology.indptr, topology.indices, homes, num_parts).needed
    traffic = np.concatenate([needed.sum(axis=0), needed.sum(axis=1)])
    loads = np.bincount(homes, topology.in_degrees + 1.0, minlength=num_parts)
    return {
        "total": int(needed.sum()),
        "largest": int(traffic.max()),
        "imbalance": compute_imbalance(traffic.tolist()),
        "nonzeros": compute_imbalance(loads.tolist()),
        "empty": int((np.bincount(homes, minlength=num_parts) == 0).sum()),
    }


def measure_in_process(arguments: argparse.Namespace, method: str, num_parts: int) -> dict[str, Any] | None:
    """Measure one method in a separate process, and return the results, or None if it fails."""
    command = [sys.executable, __file__, "--data", arguments.data, "--parts", str(num_parts)]
    command += ["--seed", str(arguments.seed), "--threads", str(arguments.threads), "--one", method]
    if arguments.mtkahypar:
        command += ["--mtkahypar", arguments.mtkahypar]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def table_line(name: str, method: str, num_parts: int, result: dict[str, Any], metis: dict[str, Any]) -> str:
    return (
        f"| {name} | {num_parts} | {method} | {result['total']:,} ({result['total'] / metis['total']:.2f}) "
        f"| {result['largest']:,} ({result['largest'] / metis['largest']:.2f}) | {result['imbalance']:.0%} "
        f"| {result['nonzeros']:.1%} | {result['cpu_s']:.1f} | {result['memory_bytes'] / MIB:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--name", help="name of the graph in the table")
    parser.add_argument("--parts", default="4,16,64,256")
    parser.add_argument("--methods", help="names, comma-separated; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads of Mt-KaHyPar")
    parser.add_argument("--mtkahypar", metavar="PYTHON", help="Python interpreter with mtkahypar")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        num_parts = int(arguments.parts)
        if arguments.one == MTKAHYPAR:
            result = measure_mtkahypar(
                arguments.data, arguments.mtkahypar, num_parts, arguments.seed, arguments.threads
            )
        else:
            result = measure_here(arguments.data, arguments.one, num_parts, arguments.seed)
        print(json.dumps(result))
        return
    methods = [*METHODS, METIS_VOLUME, *([MTKAHYPAR] if arguments.mtkahypar else [])]
    if arguments.methods:
        methods = arguments.methods.split(",")
    name = arguments.name or Path(arguments.data).stem
    print(
        "| graph | parts | method | rows sent (of metis) | largest (of metis) | imbalance | non-zeros "
        "| CPU s | MiB |"
    )
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for num_parts in map(int, arguments.parts.split(",")):
        metis = measure_in_process(arguments, "metis", num_parts)
        if metis is None:
            raise SystemExit("METIS failed")
        for method in methods:
            result = metis if method == "metis" else measure_in_process(arguments, method, num_parts)
            if result is None:
                print(f"| {name} | {num_parts} | {method} | failed | | | | | |", flush=True)
            else:
                print(table_line(name, method, num_parts, result, metis), flush=True)


if __name__ == "__main__":
    main()
