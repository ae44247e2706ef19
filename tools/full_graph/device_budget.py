"""Memory, time and losses of full-graph steps in chunks on a device, compared with the CPU.

Each line is a separate process that trains the same model from the same weights. `peak` is the maximum memory
that is allocated on the device, including weights, gradients and pooled buffers. `apart` is the maximum
relative difference of a loss to that of the CPU run.

    python tools/full_graph/device_budget.py FOLDER --budget 64MiB 128MiB 256MiB
    python tools/full_graph/device_budget.py FOLDER --chunks 1 2 4 7 --epochs 20
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from host_budget import open_mapped

_MIB = 2**20


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="indptr, indices, x, y, train, val and test as .npy files")
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", nargs="*", default=[], help="memory of the device, such as 64MiB")
    parser.add_argument("--chunks", nargs="*", type=int, default=[])
    parser.add_argument("--order", default="column-row")
    parser.add_argument("--host-memory", help="memory of the host, such as 512MiB")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(options: argparse.Namespace, run: dict[str, Any]) -> dict[str, Any]:
    """Train on one device, step by step."""
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    import torch

    from hyrt.config import build_config
    from hyrt.device import DeviceOptions
    from hyrt.device.capabilities import KeepsHostBudget, RunsChunks, usable_forms
    from hyrt.device.discovery import find_device
    from hyrt.fullgraph.intervals import ChunkOptions
    from hyrt.fullgraph.matrix_pool import HostMemoryBudget
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import plan_input
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.full_sampler import FullSampler
    from hyrt.training.setup import build_model

    graph, workers = open_mapped(options.folder), Workers(options.threads, "load")
    config = build_config(
        {
            "model": {
                "kind": options.model,
                "hidden": options.hidden,
                "dropout": options.dropout,
                "norm": "none",
            },
            "sampler": {"kind": "full"},
            "fullgraph": {"device_memory": run.get("budget"), "host_memory": options.host_memory},
        }
    )
    model = build_model(config, graph)
    parameters = list(model.parameters())
    backend, info = find_device(run["device"])
    limits = config.fullgraph
    device: Any = backend.open(
        info, DeviceOptions(threads=options.threads, memory_bytes=limits.device_memory)
    )
    if isinstance(device, RunsChunks):
        device.take_chunks(ChunkOptions(run.get("chunks", 0), options.order))
    if isinstance(device, KeepsHostBudget):
        device.take_host_budget(HostMemoryBudget(limits.host_memory))
    device.load(model, parameters)
    forms = usable_forms(device, graph, in_chunks=True)
    plan = plan_input(model, graph, forms, fuse=True, whole=True)
    sampler = FullSampler(graph, graph.split("train"), len(model.layers), 0, None)
    loader, optimizer = Loader(graph.features), torch.optim.Adam(parameters, lr=0.01)
    losses, walls, cpus = [], [], []
    for step in range(options.epochs):
        started = time.perf_counter(), time.process_time()
        batch = sampler.sample(step, sampler.units(step), workers, in_place=plan.in_place)
        loader.load(batch, plan, workers)
        result = device.propagate(device.transfer(batch))
        for parameter, gradient in zip(parameters, result.gradients, strict=True):
            parameter.grad = gradient / result.normalizer
        optimizer.step()
        device.update(parameters)
        walls.append(time.perf_counter() - started[0])
        cpus.append(time.process_time() - started[1])
        losses.append(result.loss_sum / result.normalizer)
    record = {
        "losses": losses,
        "accuracy": result.counts["correct"] / result.counts["targets"],
        "first_s": walls[0],
        "wall_s": min(walls[1:]),
        "cpu_s": min(cpus[1:]),
    }
    if isinstance(device, RunsChunks):
        record["num"] = device.num_chunks
        record["peak"] = device._memory.buffers.peak_bytes
    device.close()
    workers.close()
    return record


def run_child(run: dict[str, Any]) -> dict[str, Any]:
    """Run once in a separate process, and return the record of the run."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", json.dumps(run)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{run} failed:\n{process.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return record


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(train(options, json.loads(options.child))))
        return
    print(f"{options.folder.name} · {options.model} 2 x {options.hidden} · {options.epochs} epochs")
    runs: list[dict[str, Any]] = [{"device": "cpu"}]
    runs += [{"device": options.device, "budget": budget} for budget in options.budget]
    runs += [{"device": options.device, "chunks": chunks} for chunks in options.chunks]
    reference: list[float] = []
    for run in runs:
        record = run_child(run)
        reference = reference or record["losses"]
        apart = max(abs(a / b - 1) for a, b in zip(record["losses"], reference, strict=True))
        words = [f"{run['device']:9s} {run.get('budget', ''):>7s}"]
        if "num" in record:
            words.append(f"P {record['num']:3d}  peak {record['peak'] / _MIB:8.2f} MiB")
        words.append(
            f"epoch {record['cpu_s']:6.2f} CPU s {record['wall_s']:6.2f} s (first {record['first_s']:.1f})  "
            f"loss {record['losses'][-1]:.6f}  accuracy {record['accuracy']:.4f}  apart {apart:.1e}"
        )
        print("  ".join(words), f"  load {os.getloadavg()[0]:.0f}", flush=True)


if __name__ == "__main__":
    main()
