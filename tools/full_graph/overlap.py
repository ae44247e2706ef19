"""Chunks copied by turns with computing, and ahead of it, in pairs: times, what was hidden, and losses.

OpenCL computes on one core of the CPU. Copies are made by the other core, or, with --link, over a simulated
link: a thread makes the copy and then waits until a link of that many bytes a second would have made it, as a
GPU's copy engine works beside its cores. Bytes and kernels are real, and so are the losses, which must be
bit-equal; only the link's time is simulated.

    python tools/full_graph/overlap.py FOLDER --chunks 8 --link 2.0 4.0
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from host_budget import opened

_GB = 1e9


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of .npy files, a file, or a name such as synthetic:...")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4, help="pairs of epochs that are timed, after one more")
    parser.add_argument("--link", nargs="*", type=float, default=[], help="GB/s of simulated links")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def clock_ns() -> int:
    """The clock of PoCL's events."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class LinkEvent:
    """A copy over the link: its times are the link's."""

    def __init__(self) -> None:
        self.begin = self.end = 0

    def get_profiling_info(self, what: Any) -> int:
        """Its begin or end in nanoseconds, as an OpenCL event tells them."""
        import pyopencl as cl

        return self.begin if what == cl.profiling_info.START else self.end


class Link:
    """Makes copies on a queue of its own, each of which takes as long as the link needs for its bytes.

    Parameters
    ----------
    queue
        The queue of another core.
    bytes_per_s
        How fast the link is; infinite where the copies themselves are what takes time.
    """

    def __init__(self, queue: Any, bytes_per_s: float) -> None:
        self._queue = queue
        self._bytes_per_s = bytes_per_s

    def copy(self, event: LinkEvent, to: Any, source: Any, size_bytes: int) -> None:
        """Copy, and hold the calling thread until the link is through."""
        import pyopencl as cl

        event.begin = clock_ns()
        cl.enqueue_copy(self._queue, to, source, is_blocking=True)
        # A copy that takes the core longer than the link stays as long as it is.
        left = size_bytes / self._bytes_per_s - (clock_ns() - event.begin) * 1e-9
        if left > 0:
            time.sleep(left)
        event.end = clock_ns()


def launchers(context: Any, core: Any, copier: Any, bytes_per_s: float) -> tuple[Any, Any]:
    """What makes a queue that copies and computes by turns, and one that only copies, in a thread."""
    import pyopencl as cl
    from hyrt_devices.opencl.launch import Launcher

    class Turns(Launcher):
        """Computes on one core, and copies over the link while nothing is computed."""

        def __init__(self) -> None:
            super().__init__(context, core)
            self._link = Link(cl.CommandQueue(context, copier), bytes_per_s)

        def write(self, buffer: Any, array: Any, *, blocking: bool = False, offset: int = 0) -> Any:
            if not self.about:
                return super().write(buffer, array, blocking=blocking, offset=offset)
            self.in_bytes += array.nbytes
            return self._copy("copy in", buffer, array, array.nbytes)

        def read(self, array: Any, buffer: Any) -> Any:
            if not self.about:
                return super().read(array, buffer)
            self.out_bytes += array.nbytes
            return self._copy("copy out", array, buffer, array.nbytes)

        def _copy(self, what: str, to: Any, source: Any, size_bytes: int) -> Any:
            self.finish()
            event = LinkEvent()
            self._link.copy(event, to, source, size_bytes)
            self._note(what, event)
            return event

    class Ahead(Launcher):
        """Copies over the link in a thread; what waits for a copy waits for a user event."""

        def __init__(self) -> None:
            super().__init__(context, copier)
            self._link = Link(self._queue, bytes_per_s)
            self._jobs: SimpleQueue[Any] = SimpleQueue()
            self._thread = threading.Thread(target=self._run, name="hyrt.link", daemon=True)
            self._thread.start()

        def write(self, buffer: Any, array: Any, *, blocking: bool = False, offset: int = 0) -> Any:
            self.in_bytes += array.nbytes
            return self._give("copy in", buffer, array, array.nbytes)

        def read(self, array: Any, buffer: Any) -> Any:
            self.out_bytes += array.nbytes
            return self._give("copy out", array, buffer, array.nbytes)

        def _give(self, what: str, to: Any, source: Any, size_bytes: int) -> Any:
            event, done = LinkEvent(), cl.UserEvent(context)
            self._jobs.put((event, done, self._waited(), to, source, size_bytes))
            self._note(what, event)
            self.last = done
            return done

        def flush(self) -> None:
            """The thread starts what it is given."""

        def finish(self) -> None:
            ended = threading.Event()
            self._jobs.put(ended)
            ended.wait()

        def close(self) -> None:
            self.finish()
            self._jobs.put(None)
            self._thread.join()
            super().close()

        def _run(self) -> None:
            while (job := self._jobs.get()) is not None:
                if isinstance(job, threading.Event):
                    job.set()
                    continue
                event, done, waits, to, source, size_bytes = job
                if waits:
                    cl.wait_for_events(waits)
                self._link.copy(event, to, source, size_bytes)
                done.set_status(cl.command_execution_status.COMPLETE)

    return Turns, Ahead


def device_of(link: float | None, in_flight: int, chunks: int) -> Any:
    """OpenCL on one core, whose copies are made by the other."""
    import pyopencl as cl
    from hyrt_devices.opencl import OpenclDevice
    from hyrt_devices.opencl.probe import survey

    from hyrt.device import DeviceOptions
    from hyrt.fullgraph.chunks.chunk_options import ChunkOptions

    class OneCore(OpenclDevice):
        def __init__(self, info: Any, core: Any, copier: Any) -> None:
            super().__init__(info, core, DeviceOptions(threads=1), copier=copier)
            bytes_per_s = float("inf") if link is None else link * _GB
            turns, self._new_queue = launchers(self._context, core, copier, bytes_per_s)
            if in_flight == 1:
                self._compute.close()
                self._compute = turns()

    found = survey().found[0]
    parts = found.device.create_sub_devices([cl.device_partition_property.BY_COUNTS, 1, 1])
    device = OneCore(found.info, *parts)
    device.take_chunks(ChunkOptions(chunks, in_flight=in_flight))
    return device


def train(options: argparse.Namespace, run: dict[str, Any]) -> dict[str, Any]:
    """Both ways by turns, epoch by epoch, from the same weights."""
    from hyrt.machine.this_process.process_settings import prepare_process

    prepare_process()
    import torch

    from hyrt.config import build_config
    from hyrt.device.capabilities import usable_forms
    from hyrt.graph import open_graph
    from hyrt.machine.workers import Workers
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import plan_input
    from hyrt.sampling.full.full_sampler import FullSampler
    from hyrt.training.setup import build_model

    folder = Path(options.data)
    graph = opened(folder) if folder.is_dir() else open_graph(options.data)
    config = build_config(
        {
            "model": {
                "kind": options.model,
                "hidden": options.hidden,
                "layers": options.layers,
                "dropout": 0.0,
                "norm": "none",
            },
            "sampler": {"kind": "full"},
        }
    )
    workers = Workers(1, "load")
    ways: dict[int, dict[str, Any]] = {}
    for in_flight in (1, options.in_flight):
        model = build_model(config, graph)
        parameters = list(model.parameters())
        device = device_of(run["link"], in_flight, options.chunks)
        device.load(model, parameters)
        plan = plan_input(model, graph, usable_forms(device, graph, in_chunks=True), fuse=True, whole=True)
        ways[in_flight] = {
            "device": device,
            "parameters": parameters,
            "plan": plan,
            "sampler": FullSampler(graph, graph.split("train"), options.layers, 0, None),
            "loader": Loader(graph.features),
            "optimizer": torch.optim.Adam(parameters, lr=0.01),
            "told": [],
        }
    for step in range(1 + options.epochs):
        for way in ways.values():
            way["told"].append(epoch(way, step, workers))
    found = {}
    for in_flight, way in ways.items():
        way["device"].close()
        found[str(in_flight)] = way["told"]
    workers.close()
    return found


def epoch(way: dict[str, Any], step: int, workers: Any) -> dict[str, Any]:
    """One epoch, timed, with its loss, accuracy and figures."""
    device, plan = way["device"], way["plan"]
    batch = way["sampler"].sample(step, way["sampler"].units(step), workers, in_place=plan.in_place)
    way["loader"].load(batch, plan, workers)
    started = time.perf_counter()
    result = device.propagate(device.transfer(batch))
    seconds = time.perf_counter() - started
    for parameter, gradient in zip(way["parameters"], result.gradients, strict=True):
        parameter.grad = gradient / result.normalizer
    way["optimizer"].step()
    device.update(way["parameters"])
    return {
        "seconds": seconds,
        "loss": result.loss_sum / result.normalizer,
        "accuracy": result.counts["correct"] / result.counts["targets"],
        **result.chunks.figures(),
    }


def measured(run: dict[str, Any]) -> dict[str, Any]:
    """The epochs of both ways, in a process of their own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", json.dumps(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{run} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(train(options, json.loads(options.child))))
        return
    print(f"{options.data} · {options.model} {options.layers} x {options.hidden} · P {options.chunks}")
    for link in options.link or [None]:
        found = measured({"link": link})
        turns, ahead = found["1"], found[str(options.in_flight)]
        name = "other core" if link is None else f"{link:g} GB/s"
        for told, words in ((turns, "by turns"), (ahead, f"{options.in_flight} in flight")):
            best = min(told[1:], key=lambda each: each["seconds"])
            print(
                f"{name:>10s}  {words:12s} epoch {best['seconds']:6.3f} s  copying {best['copy_s']:6.3f} s  "
                f"computing {best['compute_s']:6.3f} s  hidden {best['hidden_s'] / best['copy_s']:4.0%}  "
                f"in {best['in_bytes'] / _GB:.2f} GB  out {best['out_bytes'] / _GB:.2f} GB  "
                f"loss {told[-1]['loss']:.6f}  accuracy {told[-1]['accuracy']:.4f}"
            )
        pairs = [a["seconds"] / b["seconds"] for a, b in zip(turns[1:], ahead[1:], strict=True)]
        equal = [a["loss"] for a in turns] == [b["loss"] for b in ahead]
        print(
            f"{'':>10s}  times faster: {statistics.median(pairs):.2f} (median of {len(pairs)} pairs, "
            f"{min(pairs):.2f} to {max(pairs):.2f}); losses {'bit-equal' if equal else 'DIFFER'}; "
            f"load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
