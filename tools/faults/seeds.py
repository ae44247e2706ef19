"""Equal seeds give equal losses, and memory does not grow.

python tools/faults/seeds.py --threads 1 2 4     # each twice; all losses of metrics.jsonl are compared
python tools/faults/seeds.py --epochs 50         # resident memory over the epochs, and its slope
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fault_case import DATA, told
from forked_runs import ForkedRuns

from hyrt.graph.formats.convert import Conversion, convert
from hyrt.report.run_folder import read_metrics

# Losses that depend on everything that is drawn: order, neighbours, dropout.
SETTINGS = [
    *(
        "data.batch_size=64",
        "model.hidden=16",
        "model.dropout=0.3",
        "sampler.fanout=[5,5]",
        "balance.policy=static",
    ),
    *("balance.predict=false", "evaluate.every=5"),
]
# Pools fill and allocators settle: judged is the second half, of so many epochs at least.
LEAST_EPOCHS = 40
GROWS = "GROWS"
# What the process may grow by in 1,000 epochs at that slope and not be called growing: an allocator settles for hundreds of epochs.
ALLOWED_MIB = 20.0


def runs_of(
    runs: ForkedRuns, folder: Path, data: Path, name: str, settings: Sequence[str], devices: str
) -> Path:
    """A run in a process of its own; its folder."""
    words = ["run", "--data", str(data), "--name", name, "--devices", devices, *SETTINGS, *settings]
    run = runs.start(words, folder)
    code = runs.wait(run, 1800)
    if code != 0:
        raise RuntimeError(f"{name} ended with {code}: {run.errors.read_text()}")
    return folder / "runs" / name


def run_alone(folder: Path, data: Path, epochs: int, devices: str) -> Path:
    """A run in a process that was started, not forked: in a forked one pages of its parent count as they are touched."""
    words = [
        "--data",
        str(data),
        "--name",
        "memory",
        "--devices",
        devices,
        *SETTINGS,
        f"train.epochs={epochs}",
    ]
    subprocess.run([sys.executable, "-m", "hyrt", "run", "--quiet", *words], cwd=folder, check=True)
    return folder / "runs" / "memory"


def losses_differ(folder: Path, data: Path, threads: Sequence[int], devices: str) -> list[str]:
    """Run twice with each count of sampler threads; which runs do not have the losses of the first."""
    wrong = []
    with ForkedRuns() as runs:
        first = None
        for count in threads:
            for again in range(2):
                name = f"threads-{count}-{again}"
                settings = (f"runtime.sample_threads={count}", "train.epochs=4")
                losses = told(runs_of(runs, folder, data, name, settings, devices))
                first = first or losses
                if losses != first:
                    wrong.append(name)
    return wrong


def memory_mib(path: Path) -> list[float]:
    """Resident memory at the end of each epoch."""
    by_epoch = {
        line["epoch"]: line["memory_bytes"]
        for line in read_metrics(path / "metrics.jsonl")
        if line["event"] == "steps"
    }
    return [by_epoch[epoch] / 2**20 for epoch in sorted(by_epoch)]


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope per step, and its standard error where errors are independent."""
    n = len(values)
    centre, mean = (n - 1) / 2, sum(values) / n
    spread = sum((i - centre) ** 2 for i in range(n))
    rise = sum((i - centre) * (value - mean) for i, value in enumerate(values)) / spread
    rest = sum((value - mean - rise * (i - centre)) ** 2 for i, value in enumerate(values))
    return rise, math.sqrt(rest / (n - 2) / spread)


def judged(rise: float, error: float) -> str:
    """What a slope per epoch says, in words."""
    if rise <= 2 * error:
        return "none within noise"
    return (
        f"above noise, below the {ALLOWED_MIB:g} MiB in 1,000 epochs allowed"
        if rise <= ALLOWED_MIB / 1000
        else GROWS
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--data", default=DATA)
    arguments = parser.parse_args()
    if not arguments.threads and not arguments.epochs:
        parser.error("give --threads, --epochs or both")
    if arguments.epochs and arguments.epochs < LEAST_EPOCHS:
        parser.error(f"--epochs: at least {LEAST_EPOCHS}, as memory settles in the first ones")
    failed = False
    with tempfile.TemporaryDirectory(prefix="hyrt-seeds-") as name:
        folder = Path(name)
        data = folder / "data.npz"
        convert(Conversion(arguments.data, data))
        if arguments.threads:
            wrong = losses_differ(folder, data, arguments.threads, arguments.devices)
            failed |= bool(wrong)
            print(
                f"{arguments.devices}: sampler threads {arguments.threads}, each twice: "
                + (f"other losses in {', '.join(wrong)}" if wrong else "equal losses in all")
            )
        if arguments.epochs:
            values = memory_mib(run_alone(folder, data, arguments.epochs, arguments.devices))
            half = len(values) // 2
            rise, error = slope(values[half:])
            before, _ = slope(values[:half])
            verdict = judged(rise, error)
            failed |= verdict == GROWS
            print(
                f"{arguments.devices}: {len(values)} epochs: {values[0]:.1f} MiB after the first, {values[half]:.1f} "
                f"after {half + 1}, {values[-1]:.1f} at the end; slope of the first half {before:+.4f}, of the second {rise:+.4f} MiB "
                f"an epoch (standard error {error:.4f}): {verdict}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
