"""Times, overlap and losses with serial and with prefetched chunk copies, in alternating epochs.

OpenCL computes on one core of the CPU, and the other core copies. With --link, a thread copies and then waits
until a link of this rate would have finished, like the copy engine of a GPU. Bytes, kernels and losses are
real; losses must be bit-equal. Only the time of the link is simulated.

    python tools/full_graph/copy_compute_overlap.py FOLDER --chunks 8 --link 2.0 4.0
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

from host_budget import open_mapped

_GB = 1e9


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a folder of .npy files, a file, or a name such as synthetic:...")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4, help="timed pairs of epochs, after one warm-up pair")
    parser.add_argument("--link", nargs="*", type=float, default=[], help="GB/s of simulated links")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def clock_ns() -> int:
    """Return the time of the clock that PoCL's events use."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class LinkEvent:
    """Event of a copy over the simulated link, with the times of the link."""

    def __init__(self) -> None:
        self.begin = self.end = 0

    def get_profiling_info(self, info: Any) -> int:
        """Return the begin or end in nanoseconds, as an OpenCL event does."""
        import pyopencl as cl

        return self.begin if info == cl.profiling_info.START else self.end


class Link:
    """Simulated link, which copies on a separate queue and takes the time of a real link for each copy.

    Parameters
    ----------
    queue
        Queue on the other core.
    bytes_per_s
        Rate of the link; if infinite, only the copies take time.
    """

    def __init__(self, queue: Any, bytes_per_s: float) -> None:
        self._queue = queue
        self._bytes_per_s = bytes_per_s

    def copy(self, event: LinkEvent, to: Any, source: Any, size_bytes: int) -> None:
        """Copy, and block the calling thread until the simulated link would have finished."""
        import pyopencl as cl

        event.begin = clock_ns()
        cl.enqueue_copy(self._queue, to, source, is_blocking=True)
        # If the copy itself takes longer than the link, do not wait.
        left = size_bytes / self._bytes_per_s - (clock_ns() - event.begin) * 1e-9
        if left > 0:
            time.sleep(left)
        event.end = clock_ns()


def launchers(context: Any, core: Any, copier: Any, bytes_per_s: float) -> tuple[Any, Any]:
    """Return two factories of queues: with serial copies, and with prefetched copies."""
    import pyopencl as cl
    from hyrt_devices.opencl.launch import Launcher

    class SerialCopies(Launcher):
        """Queue that computes on one core, and copies over the link while no kernel runs."""

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

        def _copy(self, kind: str, to: Any, source: Any, size_bytes: int) -> Any:
            self.finish()
            event = LinkEvent()
            self._link.copy(event, to, source, size_bytes)
            self._note(kind, event)
            return event

    class PrefetchedCopies(Launcher):
        """Queue that copies over the link in a thread; dependent commands wait for a user event."""

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

        def _submit(self, kind: str, to: Any, source: Any, size_bytes: int) -> Any:
            event, done = LinkEvent(), cl.UserEvent(context)
            self._jobs.put((event, done, self._waited(), to, source, size_bytes))
            self._note(kind, event)
            self.last = done
            return done

        def flush(self) -> None:
            """Return immediately, because the thread starts copies at once."""

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

    return SerialCopies, PrefetchedCopies


def open_device(link: float | None, in_flight: int, chunks: int) -> Any:
    """Return an OpenCL device that computes on one core and copies on the other."""
    import pyopencl as cl
    from hyrt_devices.opencl import OpenclDevice
    from hyrt_devices.opencl.probe import survey

    from hyrt.device import DeviceOptions
    from hyrt.fullgraph.intervals import ChunkOptions

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
    """Train with both kinds of queues in alternating epochs, from the same weights."""
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    import torch

    from hyrt.config import build_config
    from hyrt.device.capabilities import usable_forms
    from hyrt.graph import open_graph
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import plan_input
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.full_sampler import FullSampler
    from hyrt.training.setup import build_model

    folder = Path(options.data)
    graph = open_mapped(folder) if folder.is_dir() else open_graph(options.data)
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
        device = open_device(run["link"], in_flight, options.chunks)
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
    records = {}
    for in_flight, way in ways.items():
        way["device"].close()
        records[str(in_flight)] = way["told"]
    workers.close()
    return records


def epoch(way: dict[str, Any], step: int, workers: Any) -> dict[str, Any]:
    """Run one epoch, and return its time, loss, accuracy and copy statistics."""
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


def run_child(run: dict[str, Any]) -> dict[str, Any]:
    """Run the epochs with both kinds of queues in a separate process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", json.dumps(run)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{run} failed:\n{process.stderr[-3000:]}")
    records: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return records


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(train(options, json.loads(options.child))))
        return
    print(f"{options.data} · {options.model} {options.layers} x {options.hidden} · P {options.chunks}")
    for link in options.link or [None]:
        records = run_child({"link": link})
        turns, ahead = records["1"], records[str(options.in_flight)]
        name = "other core" if link is None else f"{link:g} GB/s"
        for way, words in ((turns, "by turns"), (ahead, f"{options.in_flight} in flight")):
            best = min(way[1:], key=lambda each: each["seconds"])
            print(
                f"{name:>10s}  {words:12s} epoch {best['seconds']:6.3f} s  copying {best['copy_s']:6.3f} s  "
                f"computing {best['compute_s']:6.3f} s  hidden {best['hidden_s'] / best['copy_s']:4.0%}  "
                f"in {best['in_bytes'] / _GB:.2f} GB  out {best['out_bytes'] / _GB:.2f} GB  "
                f"loss {way[-1]['loss']:.6f}  accuracy {way[-1]['accuracy']:.4f}"
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
