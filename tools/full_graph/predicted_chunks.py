"""Predicted epoch times of training in chunks compared with measured times, after `hyrt calibrate`.

Each combination of graph, model, devices and P is predicted as in `hyrt run`, and trained for a few epochs.
The first epoch is warm-up: it sorts edges and computes the gather of the first layer. The fastest of the
other epochs counts, because other load only adds time. The table has the mean and the worst absolute error;
the exit code is 1 if the mean is above 10 % or the worst above 25 %. On a busy machine, `--cpu-seconds`
trains with one thread and compares with the minimum of CPU seconds.

    python tools/full_graph/predicted_chunks.py synthetic:community data/coauthor_physics.npz --chunks 1 2 4 7
    python tools/full_graph/predicted_chunks.py synthetic:community --devices cpu=1,opencl=1 --models gcn
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyrt.runtime.process_setup import prepare_process

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.telemetry.events import Event

MODELS = ("gcn", "graphsage", "gin", "gat")


@dataclass
class EpochRecorder:
    """Epoch times and notices of a run."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    predicted_s: float | None = None
    notices: list[str] = field(default_factory=list)
    before: float = field(default_factory=time.process_time)

    def on_event(self, event: Event) -> None:
        from hyrt.telemetry.events import EpochEnded, Notice

        if isinstance(event, Notice):
            self.notices.append(event.text)
        if isinstance(event, EpochEnded):
            now = time.process_time()
            self.seconds.append(event.seconds)
            self.cpu_s.append(now - self.before)
            self.before = now
            self.predicted_s = event.predicted_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="+", help="datasets, as for hyrt run --data")
    parser.add_argument("--models", nargs="+", default=MODELS, help="model kinds")
    parser.add_argument("--devices", nargs="+", default=["cpu"], help="devices, as for hyrt run --devices")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 7], help="numbers P")
    parser.add_argument("--hidden", type=int, default=64, help="hidden width")
    parser.add_argument("--epochs", type=int, default=5, help="epochs per run")
    parser.add_argument("--cpu-seconds", action="store_true", help="compare with CPU seconds of one thread")
    parser.add_argument("--with", nargs="*", default=[], dest="settings", help="further settings")
    parser.add_argument("--table", type=Path, help="also write the table to this file")
    return parser.parse_args()


def record_epochs(graph: Graph, source: str, words: list[str]) -> EpochRecorder:
    """Train, and record epoch times."""
    from hyrt.config import build_config
    from hyrt.config.load import apply_overrides
    from hyrt.predict.predict_run import predict_run
    from hyrt.training.build_run import build_run
    from hyrt.training.train import Training

    run_settings: dict[str, Any] = {"data": {"source": source}, "sampler": {"kind": "full"}}
    recorder = EpochRecorder()
    config = build_config(apply_overrides(run_settings, ["evaluate.every=0", *words]))
    Training(build_run(config, graph, emit=recorder.hear, predict=predict_run)).run()
    return recorder


def main() -> int:
    options = arguments()
    prepare_process()
    from hyrt.graph.source import open_graph

    lines = [
        "| graph | devices | model | P | predicted ms | fastest epoch ms | least CPU ms | error |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    errors = []
    for source in options.graphs:
        graph = open_graph(source)
        for devices in options.devices:
            for kind in options.models:
                for chunks in options.chunks:
                    words = [
                        *(f"model.kind={kind}", f"model.hidden={options.hidden}"),
                        *(f"devices=[{devices}]", f"fullgraph.chunks={chunks}"),
                        *(f"train.epochs={options.epochs}", *options.settings),
                        *(["runtime.train_threads=1"] if options.cpu_seconds else []),
                    ]
                    run = record_epochs(graph, source, words)
                    name = f"{Path(source).name} | {devices} | {kind} | {chunks}"
                    if run.predicted_s is None:
                        lines.append(f"| {name} | | | | {'; '.join(run.notices)} |")
                        print(lines[-1], flush=True)
                        continue
                    fastest_s, fastest_cpu_s = min(run.seconds[1:]), min(run.cpu_s[1:])
                    compared_s = fastest_cpu_s if options.cpu_seconds else fastest_s
                    errors.append(run.predicted_s / compared_s - 1)
                    times = (run.predicted_s, fastest_s, fastest_cpu_s)
                    lines.append(
                        f"| {name} | {' | '.join(f'{1e3 * s:.1f}' for s in times)} | {errors[-1]:+.1%} |"
                    )
                    print(lines[-1], flush=True)
    if errors:
        mean, worst = statistics.fmean(map(abs, errors)), max(map(abs, errors))
        lines.append(f"\nMean absolute error {mean:.1%} (target 10 %), worst {worst:.1%} (target 25 %).")
        print(lines[-1])
    if options.table:
        options.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(not errors or mean > 0.10 or worst > 0.25)


if __name__ == "__main__":
    raise SystemExit(main())
