"""OpenCL trainer compared with the CPU trainer on the same mini-batches, in alternating rounds.

Both trainers start from the same weights and make the same Adam steps over the same pre-sampled mini-batches,
each with its preferred input form. The tool prints the median ms per step (transfer + propagate) of both, the
ratio of each round, loss and accuracy of the last round, and with `--kernels` the time of each kernel on the
device clock.

    python tools/bench/opencl.py --workload products-s --data data --device opencl:0 --threads 1
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timed_runs import BATCH, FANOUT, KINDS, LR, append_records, make_parser, open_workload, prepared

if TYPE_CHECKING:
    import torch

    from hyrt.device import Span
    from hyrt.sampling.minibatch import MiniBatch


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workload", default="products-s")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of generated workloads")
    parser.add_argument("--model", choices=("sage", "gcn", "gin"), default="sage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--threads", type=int, default=1, help="threads and compute units of each trainer")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--rows",
        action="store_true",
        help="transfer feature rows to the OpenCL device instead of their aggregate",
    )
    parser.add_argument("--kernels", action="store_true", help="print the seconds of each kernel")
    parser.add_argument("--json", type=Path, help="append the record to this file")
    return parser.parse_args()


class DeviceSide:
    """Trainer with its replica, its optimizer and its copies of the mini-batches."""

    def __init__(self, device: Any, model: torch.nn.Module, batches: list[MiniBatch]) -> None:
        import torch

        self.device = device
        self.model = copy.deepcopy(model)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=LR)
        self.batches = batches
        self.ms: list[float] = []
        self.loss = self.accuracy = 0.0
        device.load(self.model, self.parameters)

    def round(self) -> None:
        """Train on every mini-batch once, and record ms, loss and accuracy."""
        seconds, loss, correct, targets = [], 0.0, 0, 0
        for batch in self.batches:
            started = time.perf_counter()
            result = self.device.propagate(self.device.transfer(batch))
            seconds.append(time.perf_counter() - started)
            for parameter, gradient in zip(self.parameters, result.gradients, strict=True):
                parameter.grad = gradient / result.normalizer
            self.optimizer.step()
            self.device.update(self.parameters)
            loss += result.loss_sum
            correct += result.counts["correct"]
            targets += result.counts["targets"]
        self.ms.append(statistics.median(seconds) * 1e3)
        self.loss, self.accuracy = loss / targets, correct / targets


def main() -> None:
    options = arguments()
    prepared()
    import torch

    from hyrt.device import DeviceOptions
    from hyrt.device.discovery import find_device
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.model import GNN
    from hyrt.nn.torch_threads import use_one_torch_thread
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import plan_input
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.neighbor_sampler import NeighborSampler

    use_one_torch_thread()
    graph = open_workload(options.data / options.workload)
    torch.manual_seed(0)
    model = GNN(
        Architecture(
            kind=KINDS[options.model],  # type: ignore[arg-type]
            in_features=graph.num_features,
            hidden=options.hidden,
            num_classes=graph.num_classes,
            dropout=options.dropout,
        )
    )
    sampler = NeighborSampler(graph, graph.split("train"), FANOUT, BATCH, 0)
    workers = Workers(1, "bench")
    sides = []
    for name in ("cpu", options.device):
        backend, info = find_device(name)
        plan = plan_input(model, graph, info.forms, fuse=name == "cpu" or not options.rows)
        batches = []
        for step in range(options.batches):
            batch = sampler.sample(step, sampler.units(step), workers, in_place=plan.in_place)
            Loader(graph.features).load(batch, plan, workers)
            batches.append(batch)
        sides.append(DeviceSide(backend.open(info, DeviceOptions(threads=options.threads)), model, batches))
    cpu, opencl = sides
    for side in sides:
        side.round()
        side.ms.clear()
    for _ in range(options.rounds):
        for side in sides:
            side.round()
    ratios = [b / a for a, b in zip(cpu.ms, opencl.ms, strict=True)]
    record = {
        "workload": options.workload,
        "model": options.model,
        "dropout": options.dropout,
        "inputs": "rows" if options.rows else plan.form,
        "device": opencl.device.info.description,
        "threads": options.threads,
        "cpu_ms": round(statistics.median(cpu.ms), 2),
        "opencl_ms": round(statistics.median(opencl.ms), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "loss": [cpu.loss, opencl.loss],
        "accuracy": [cpu.accuracy, opencl.accuracy],
        "load_average": os.getloadavg()[0],
    }
    if options.kernels:
        total: dict[str, float] = defaultdict(float)

        def on_event(queue: str, spans: Sequence[Span]) -> None:
            for at, (kernel, start, end) in enumerate(spans if queue == "compute" else ()):
                total[f"{at:2d} {kernel}"] += (end - start) * 1e-6 / len(opencl.batches)

        # Warm up, because the first step after the timed rounds also uploads weights.
        opencl.device.propagate(opencl.device.transfer(opencl.batches[0]))
        opencl.device.trace(on_event)
        for batch in opencl.batches:
            opencl.device.propagate(opencl.device.transfer(batch))
        record["kernel_ms"] = {name: round(ms, 3) for name, ms in total.items()}
        record["kernels_ms"] = round(sum(total.values()), 2)
    for side in sides:
        side.device.close()
    print(json.dumps(record, indent=2))
    append_records(options.json, [record])


if __name__ == "__main__":
    main()
