"""CPU seconds and errors of hyrt.ops, compared with torch.sparse and DGL in alternating rounds.

    python tools/bench/sparse_operators.py DATA [DATA ...] --dgl-python peer-dgl/bin/python

Each case is a forward pass, and a backward pass through autograd, from the same inputs in every system: SpMM
(the sum of neighbours), GAT's attention (edge scores, softmax, weighted sum, with self-loops) and SDDMM (a
dot product per edge). torch.sparse has no attention; its SpMM backward pass is timed as the product with the
transpose, which equals the graph because it is symmetric. DGL runs in a separate process with its own version
of torch.

Errors are measured on some rows against float64, relative to the largest value. CPU seconds are medians over
the rounds, summed over all threads; unlike wall times (last column), they are hardly affected by other
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# Disable busy-waiting, which would count as work. torch reads this variable when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch

# Use the malloc settings of a `hyrt` process. Otherwise, every library spends kernel time on new pages for
# each result.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
SLOPE = 0.2
ROWS = 40
"""Number of rows or edges that are computed in float64 as a reference."""
LONG_S = 20.0
"""CPU seconds above which only one round of a case is run."""


@dataclass(frozen=True)
class Case:
    """Operator with the sizes of its inputs."""

    name: str
    heads: int
    width: int

    def __str__(self) -> str:
        if self.name == "attention":
            return f"attention, {self.heads} x {self.width}"
        return f"{self.name}, f = {self.width}"


CASES = [
    *(Case("SpMM", 1, width) for width in (16, 64, 128)),
    *(Case("attention", heads, 16) for heads in (1, 3, 8)),
    *(Case("SDDMM", 1, width) for width in (16, 64)),
]

Run = Callable[[Case, int], dict[str, float]]
"""Function that runs a case with a number of threads, writes the results, and returns CPU seconds."""


def inputs(case: Case, vertices: int, edges: int) -> dict[str, torch.Tensor]:
    draws = np.random.default_rng(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draws.standard_normal(shape, np.float32))

    if case.name == "SpMM":
        return {"x": normal(vertices, case.width), "grad": normal(vertices, case.width)}
    if case.name == "SDDMM":
        return {"x": normal(vertices, case.width), "y": normal(vertices, case.width), "grad": normal(edges)}
    shape = (vertices, case.heads, case.width)
    return {
        "x": normal(*shape),
        "source": normal(vertices, case.heads),
        "destination": normal(vertices, case.heads),
        "grad": normal(*shape),
    }


def clocks() -> tuple[float, float]:
    """Return the CPU seconds of all threads, and the wall seconds."""
    return time.process_time(), time.perf_counter()


def pass_times(forward: tuple[float, float], backward: tuple[float, float] | None) -> dict[str, float]:
    """Return the times of both passes on both clocks, and their total if there is a backward pass."""
    if backward is None:
        return {"forward": forward[0], "wall": forward[1]}
    return {"forward": forward[0], "backward": backward[0], "wall": forward[1] + backward[1]}


def time_between(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return end[0] - start[0], end[1] - start[1]


def time_passes(
    folder: Path, tensors: dict[str, torch.Tensor], forward: Callable[[dict[str, torch.Tensor]], torch.Tensor]
) -> dict[str, float]:
    """Time both passes, and save the result and the gradient of x in the folder."""
    leaves = {name: t.requires_grad_() if name != "grad" else t for name, t in tensors.items()}
    started = clocks()
    out = forward(leaves)
    forward_end = clocks()
    out.backward(leaves["grad"].view(out.shape))
    ended = clocks()
    x_grad = leaves["x"].grad
    assert x_grad is not None
    np.save(folder / "out.npy", out.detach().numpy())
    np.save(folder / "x_grad.npy", x_grad.numpy())
    return pass_times(time_between(started, forward_end), time_between(forward_end, ended))


def hyrt_run(indptr: np.ndarray, indices: np.ndarray, folder: Path) -> Run:
    from hyrt import ops

    graph = ops.Topology(indptr, indices)
    assert graph.is_symmetric

    def forward(case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
        if case.name == "SpMM":
            return ops.spmm(graph, t["x"])
        if case.name == "SDDMM":
            return ops.sddmm(graph, t["x"], t["y"])
        return ops.attention(graph, t["x"], t["source"], t["destination"], negative_slope=SLOPE)

    def run(case: Case, threads: int) -> dict[str, float]:
        tensors = inputs(case, graph.num_vertices, graph.num_edges)
        with ops.threads(threads):
            return time_passes(folder, tensors, partial(forward, case))

    return run


def torch_run(indptr: np.ndarray, indices: np.ndarray, folder: Path) -> Run:
    num = len(indptr) - 1
    ends = (torch.from_numpy(indptr.astype(np.int32)), torch.from_numpy(indices.astype(np.int32)))
    matrix = torch.sparse_csr_tensor(*ends, torch.ones(len(indices)), (num, num), check_invariants=False)

    def run(case: Case, threads: int) -> dict[str, float]:
        torch.set_num_threads(threads)
        tensors = inputs(case, num, len(indices))
        started = clocks()
        if case.name == "SpMM":
            out = matrix @ tensors["x"]
            forward_end = clocks()
            x_grad = matrix @ tensors["grad"]
            result = pass_times(time_between(started, forward_end), time_between(forward_end, clocks()))
            np.save(folder / "x_grad.npy", x_grad.numpy())
        else:
            # The rows of the matrix are destinations.
            out = torch.sparse.sampled_addmm(matrix, tensors["y"], tensors["x"].t(), beta=0).values()
            result = pass_times(time_between(started, clocks()), None)
        np.save(folder / "out.npy", out.numpy())
        torch.set_num_threads(1)
        return result

    return run


def serve_dgl(folder: Path) -> None:
    """Run the cases whose names arrive on standard input, one per line."""
    import dgl
    import dgl.ops

    def open_dgl_graph(looped: bool) -> Any:
        indptr, indices = (np.load(folder / f"{name}.npy") for name in ("indptr", "indices"))
        if looped:
            degrees = np.diff(indptr)
            indices = np.insert(indices, indptr[1:], np.arange(len(degrees), dtype=indices.dtype))
            indptr = np.concatenate([[0], np.cumsum(degrees + 1)])
        ends = (torch.from_numpy(a.astype(np.int32)) for a in (indptr, indices))
        numbers = torch.arange(len(indices), dtype=torch.int32)
        return dgl.graph(("csc", (*ends, numbers)), num_nodes=len(indptr) - 1, idtype=torch.int32)

    graphs: dict[bool, Any] = {}

    def forward(graph: Any, case: Case, t: dict[str, torch.Tensor]) -> torch.Tensor:
        if case.name == "SpMM":
            return dgl.ops.copy_u_sum(graph, t["x"])
        if case.name == "SDDMM":
            return dgl.ops.u_dot_v(graph, t["x"], t["y"])[:, 0]
        scores = dgl.ops.u_add_v(graph, t["source"], t["destination"])
        weights = dgl.ops.edge_softmax(graph, torch.nn.functional.leaky_relu(scores, SLOPE))
        return dgl.ops.u_mul_e_sum(graph, t["x"], weights[:, :, None])

    for line in sys.stdin:
        request = json.loads(line)
        case = Case(**request["case"])
        torch.set_num_threads(request["threads"])
        looped = case.name == "attention"
        if looped not in graphs:
            graphs.clear()
            graphs[looped] = open_dgl_graph(looped)
        tensors = inputs(case, graphs[looped].num_nodes(), graphs[looped].num_edges())
        print(json.dumps(time_passes(folder, tensors, partial(forward, graphs[looped], case))), flush=True)


@contextmanager
def dgl_run(python: str, folder: Path) -> Iterator[Run]:
    command = [python, str(Path(__file__).resolve()), "--serve-dgl", str(folder)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **MALLOC}
    )
    assert child.stdin
    assert child.stdout
    asks, answers = child.stdin, child.stdout

    def run(case: Case, threads: int) -> dict[str, float]:
        asks.write(json.dumps({"case": asdict(case), "threads": threads}) + "\n")
        asks.flush()
        while line := answers.readline():
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit("DGL's process has ended: see its message above")

    try:
        yield run
    finally:
        asks.close()
        child.wait()


def exact(case: Case, indptr: np.ndarray, indices: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the indices and float64 values of some rows of the result and of the gradient of x."""
    num = len(indptr) - 1
    arrays = {name: t.numpy().astype(np.float64) for name, t in inputs(case, num, len(indices)).items()}
    draws = np.random.default_rng(1)
    # Include the longest row, which accumulates the largest error.
    rows = np.append(draws.choice(num, ROWS - 1, replace=False), np.diff(indptr).argmax())

    def sources(i: int) -> np.ndarray:
        return indices[indptr[i] : indptr[i + 1]]

    def attend(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the edges of a row including its self-loop, their weights, and the result."""
        neighbors = np.append(sources(i), i)
        raw = arrays["source"][neighbors] + arrays["destination"][i]
        scores = np.where(raw > 0, raw, SLOPE * raw)
        weights = np.exp(scores - scores.max(0))
        weights /= weights.sum(0)
        return neighbors, weights, np.einsum("eh,ehd->hd", weights, arrays["x"][neighbors])

    if case.name == "SpMM":
        return {
            "out": (rows, np.stack([arrays["x"][sources(i)].sum(0) for i in rows])),
            "x_grad": (rows, np.stack([arrays["grad"][sources(i)].sum(0) for i in rows])),
        }
    if case.name == "SDDMM":
        edges = draws.choice(len(indices), ROWS, replace=False)
        ends = np.searchsorted(indptr, edges, side="right") - 1
        return {"out": (edges, (arrays["x"][indices[edges]] * arrays["y"][ends]).sum(1))}
    few = rows[: ROWS // 4]
    gradients = []
    for j in few:
        total = np.zeros((case.heads, case.width))
        # The graph is symmetric, so in-neighbours equal out-neighbours.
        for i in np.append(sources(j), j):
            neighbors, weights, _ = attend(i)
            total += weights[neighbors == j].sum(0)[:, None] * arrays["grad"][i]
        gradients.append(total)
    return {"out": (rows, np.stack([attend(i)[2] for i in rows])), "x_grad": (few, np.stack(gradients))}


def cpu_s(took: dict[str, float]) -> float:
    return took["forward"] + took.get("backward", 0.0)


def error(folder: Path, expected: dict[str, tuple[np.ndarray, np.ndarray]]) -> float:
    worst = 0.0
    for name, (rows, values) in expected.items():
        computed = np.load(folder / f"{name}.npy", mmap_mode="r")[rows].reshape(values.shape)
        worst = max(worst, float(np.abs(computed - values).max() / np.abs(values).max()))
    return worst


def compare(source: str, options: argparse.Namespace) -> None:
    import hyrt

    topology = hyrt.load(source).topology
    indptr, indices = topology.indptr, np.ascontiguousarray(topology.indices)
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        np.save(folder / "indptr.npy", indptr)
        np.save(folder / "indices.npy", indices)
        systems: dict[str, Run] = {
            "hyrt": hyrt_run(indptr, indices, folder),
            "torch.sparse": torch_run(indptr, indices, folder),
        }
        print(f"\n{source}: {topology.num_vertices:,} vertices, {topology.num_edges:,} edges\n")
        print("| operator | threads | system | forward, CPU s | backward, CPU s | both | wall s | error |")
        print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        if options.dgl_python is None:
            table(systems, indptr, indices, folder, options)
            return
        with dgl_run(options.dgl_python, folder) as run:
            table({**systems, "DGL": run}, indptr, indices, folder, options)


def table(
    systems: dict[str, Run],
    indptr: np.ndarray,
    indices: np.ndarray,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    for case in CASES:
        if options.only and options.only not in str(case):
            continue
        expected = exact(case, indptr, indices)
        taking = {
            name: run for name, run in systems.items() if case.name != "attention" or name != "torch.sparse"
        }
        for threads in options.threads:
            times: dict[str, list[dict[str, float]]] = {name: [] for name in taking}
            errors = dict.fromkeys(taking, 0.0)
            # Ignore the first round, which compiles kernels, unless it is the only one.
            for round_ in range(options.rounds + 1):
                for name, run in taking.items():
                    if times[name] and cpu_s(times[name][-1]) > LONG_S:
                        continue
                    for left in ("out", "x_grad"):
                        (folder / f"{left}.npy").unlink(missing_ok=True)
                    took = run(case, threads)
                    if round_ == 0 and cpu_s(took) <= LONG_S:
                        continue
                    times[name].append(took)
                    available = {
                        key: rows for key, rows in expected.items() if (folder / f"{key}.npy").exists()
                    }
                    errors[name] = max(errors[name], error(folder, available))
            for name, runs in times.items():
                medians = {key: statistics.median(took[key] for took in runs) for key in runs[0]}
                both = cpu_s(medians)
                backward = f"{medians['backward']:.3f}" if "backward" in medians else ""
                print(
                    f"| {case} | {threads} | {name} | {medians['forward']:.3f} | {backward} | "
                    f"{format(both, '.3f') if backward else ''} | {medians['wall']:.3f} | "
                    f"{errors[name]:.0e} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="symmetric graphs, in any format that hyrt reads")
    parser.add_argument(
        "--dgl-python", help="Python interpreter of an environment with DGL; without it, DGL is skipped"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", help="run only cases whose name contains this string")
    parser.add_argument("--scratch", type=Path, help="folder for the compared results")
    parser.add_argument("--serve-dgl", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_dgl is not None:
        serve_dgl(options.serve_dgl)
        return
    from timed_runs import prepared

    prepared()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {options.rounds} rounds")
    for source in options.data:
        compare(source, options)


if __name__ == "__main__":
    main()
