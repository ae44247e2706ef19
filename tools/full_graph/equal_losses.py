"""Losses of full-graph training in chunks, compared with whole CPU steps, for several models, P and devices.

All runs start with the same weights and use the same dropout masks, so losses differ only by rounding. In the
Markdown table, `apart` is the maximum relative difference of a loss to that of a CPU step without chunks, and
`bits` shows whether a second run with the same settings has bit-equal losses.

    python tools/full_graph/equal_losses.py cora.npz --models gcn ggcn gat
    python tools/full_graph/equal_losses.py cora.npz --models gcn --chunks 4 --with fullgraph.order=row-column
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import hyrt
from hyrt.telemetry.events import Event, StepMetrics

DEVICES = ("cpu", "cpu:0=1,cpu:1=2", "opencl", "cpu=1,opencl=3")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="dataset, as for hyrt.load")
    parser.add_argument("--models", nargs="+", default=["gcn", "ggcn", "ggnn", "commnet", "gat"])
    parser.add_argument("--devices", nargs="+", default=DEVICES, help="as for hyrt run; one run each")
    parser.add_argument("--chunks", nargs="+", type=int, default=[1, 2, 4, 7], help="P; one run each")
    parser.add_argument(
        "--with", nargs="+", default=[], dest="settings", help="section.name=value, for all runs"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--twice", action="store_true", help="run every case twice and compare bits")
    return parser.parse_args()


class Curve:
    """Losses, accuracy and CPU seconds per epoch of one run.

    Parameters
    ----------
    graph
        The graph.
    kind, devices, chunks
        Model, devices and P of the run; P = 0 is a CPU step without chunks.
    options
        Options of the command line.
    """

    def __init__(self, graph: Any, kind: str, devices: str, chunks: int, options: argparse.Namespace) -> None:
        self.losses: list[float] = []
        self.accuracy = 0.0
        seconds: list[float] = []
        ended = 0.0

        def on_event(event: Event) -> None:
            nonlocal ended
            if isinstance(event, StepMetrics):
                self.losses.extend(event.losses)
                self.accuracy = event.training_metrics["accuracy"]
                now = time.process_time()
                seconds.append((now - ended) / len(event.losses))
                ended = now

        settings: dict[str, dict[str, Any]] = {
            "train": {"epochs": options.epochs},
            "evaluate": {"every": 10 * options.epochs},
            "balance": {"predict": False},
            "fullgraph": {"chunks": chunks} if chunks else {},
        }
        for setting in options.settings if chunks else ():
            path, _, value = setting.partition("=")
            section, _, name = path.partition(".")
            settings.setdefault(section, {})[name] = value
        hyrt.train(
            graph,
            {"kind": kind, "hidden": options.hidden},
            full_graph=True,
            devices=devices.split(","),
            emit=on_event,
            **settings,
        )
        self.cpu_s = statistics.median(seconds)

    def __str__(self) -> str:
        return f"{self.losses[-1]:.6f} | {self.accuracy:.4f} | {self.cpu_s:.4f}"

    def apart(self, other: Curve) -> float:
        """Return the maximum relative difference between losses of two runs."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, other.losses, strict=True))


def main() -> None:
    """Train with all combinations, and print the table."""
    options = arguments()
    graph = hyrt.load(options.data)
    print("| model | devices | P | apart | bits | last loss | accuracy | CPU s per epoch |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |")
    for kind in options.models:
        alone = Curve(graph, kind, "cpu", 0, options)
        print(f"| {kind} | cpu, untiled | | | | {alone} |")
        for devices in options.devices:
            for chunks in options.chunks:
                curve = Curve(graph, kind, devices, chunks, options)
                bits = ""
                if options.twice:
                    second_run = Curve(graph, kind, devices, chunks, options)
                    bits = "equal" if second_run.losses == curve.losses else "differ"
                place = f"{kind} | {devices.replace(',', ', ')} | {chunks}"
                print(f"| {place} | {curve.apart(alone):.1e} | {bits} | {curve} |", flush=True)


if __name__ == "__main__":
    main()
