"""Equal seeds give equal losses, and memory does not grow.

python tools/faults/seeds.py --threads 1 2 4     # each twice; all losses of metrics.jsonl are compared
python tools/faults/seeds.py --epochs 50         # resident memory over the epochs, and its slope
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from compared_runs import read_records
from forked_runs import ForkedRuns
from trials import DATA, parser, workplace, write_data

from hyrt.report.records.run_folder import read_metrics

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
# What the process may grow by in 1,000 epochs at that slope and not be called growing: an allocator settles
# for hundreds of epochs.
ALLOWED_MIB = 20.0


def runs_of(
    runs: ForkedRuns, folder: Path, data: Path, name: str, settings: Sequence[str], devices: str
) -> Path:
    """A run in a process of its own; its folder."""
    words = ["run", "--data", str(data), "--name", name, "--devices", devices, *SETTINGS, *settings]
    runs.complete(words, folder, 1800)
    return folder / "runs" / name


def run_alone(folder: Path, data: Path, epochs: int, devices: str) -> Path:
    """A run in a process that was started, not forked.

    In a forked one, pages of its parent would count as they are touched.
    """
    words = [
        *("--data", str(data), "--name", "memory", "--devices", devices),
        *SETTINGS,
        f"train.epochs={epochs}",
    ]
    subprocess.run([sys.executable, "-m", "hyrt", "run", "--quiet", *words], cwd=folder, check=True)
    return folder / "runs" / "memory"


def losses_differ(
    runs: ForkedRuns, folder: Path, data: Path, threads: Sequence[int], devices: str
) -> list[str]:
    """Run twice with each count of sampler threads; which runs do not have the losses of the first."""
    wrong = []
    first = None
    for count in threads:
        for again in range(2):
            name = f"threads-{count}-{again}"
            settings = (f"runtime.sample_threads={count}", "train.epochs=4")
            losses = read_records(runs_of(runs, folder, data, name, settings, devices))
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
    asked = parser(__doc__)
    asked.add_argument("--threads", type=int, nargs="*", default=[])
    asked.add_argument("--epochs", type=int)
    asked.add_argument("--devices", default="cpu:0")
    asked.add_argument("--data", default=DATA)
    options = asked.parse_args()
    if not options.threads and not options.epochs:
        asked.error("give --threads, --epochs or both")
    if options.epochs and options.epochs < LEAST_EPOCHS:
        asked.error(f"--epochs: at least {LEAST_EPOCHS}, as memory settles in the first ones")
    failed = False
    with workplace("seeds") as (folder, runs):
        data = write_data(folder / "data.npz", options.data)
        if options.threads:
            wrong = losses_differ(runs, folder, data, options.threads, options.devices)
            failed |= bool(wrong)
            print(
                f"{options.devices}: sampler threads {options.threads}, each twice: "
                + (f"other losses in {', '.join(wrong)}" if wrong else "equal losses in all")
            )
        if options.epochs:
            values = memory_mib(run_alone(folder, data, options.epochs, options.devices))
            half = len(values) // 2
            rise, error = slope(values[half:])
            before, _ = slope(values[:half])
            verdict = judged(rise, error)
            failed |= verdict == GROWS
            print(
                f"{options.devices}: {len(values)} epochs: {values[0]:.1f} MiB after the first, "
                f"{values[half]:.1f} after {half + 1}, {values[-1]:.1f} at the end; slope of the first half "
                f"{before:+.4f}, of the second {rise:+.4f} MiB an epoch (standard error {error:.4f}): "
                f"{verdict}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
