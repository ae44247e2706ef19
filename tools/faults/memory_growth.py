"""Train for many epochs, and fit the growth of resident memory.

python tools/faults/memory_growth.py --epochs 50
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trials import DATA, make_parser, workplace, write_data

from hyrt.report.run_folder import read_metrics

SETTINGS = [
    *("data.batch_size=64", "model.hidden=16", "model.dropout=0.3", "sampler.fanout=[5,5]"),
    *("balance.policy=static", "balance.predict=false", "evaluate.every=5"),
]
# Pools and allocators settle in the first half of the epochs; only the second half is tested.
MIN_EPOCHS = 40
GROWS = "GROWS"
# Tolerated growth per 1,000 epochs: an allocator settles for hundreds of epochs.
ALLOWED_MIB = 20.0


def train(folder: Path, data: Path, epochs: int, devices: str) -> Path:
    """Train in a new process, and return the run folder.

    In a forked process, touched pages of the parent would count as growth.
    """
    command = [
        *(sys.executable, "-m", "hyrt", "run", "--quiet"),
        *("--data", str(data), "--name", "memory", "--devices", devices),
        *(*SETTINGS, f"train.epochs={epochs}"),
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "runs" / "memory"


def memory_mib(path: Path) -> list[float]:
    """Return the resident memory at the end of each epoch in MiB."""
    by_epoch = {
        line["epoch"]: line["memory_bytes"]
        for line in read_metrics(path / "metrics.jsonl")
        if line["event"] == "steps"
    }
    return [by_epoch[epoch] / 2**20 for epoch in sorted(by_epoch)]


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Return the least-squares slope per step, and its standard error for independent errors."""
    n = len(values)
    centre, mean = (n - 1) / 2, sum(values) / n
    spread = sum((i - centre) ** 2 for i in range(n))
    rise = sum((i - centre) * (value - mean) for i, value in enumerate(values)) / spread
    rest = sum((value - mean - rise * (i - centre)) ** 2 for i, value in enumerate(values))
    return rise, math.sqrt(rest / (n - 2) / spread)


def describe_slope(rise: float, error: float) -> str:
    """Describe a slope per epoch."""
    if rise <= 2 * error:
        return "none within noise"
    return (
        f"above noise, below the {ALLOWED_MIB:g} MiB in 1,000 epochs allowed"
        if rise <= ALLOWED_MIB / 1000
        else GROWS
    )


def main() -> int:
    options = make_parser(__doc__)
    options.add_argument("--epochs", type=int, default=50)
    options.add_argument("--devices", default="cpu:0")
    options.add_argument("--data", default=DATA)
    chosen = options.parse_args()
    if chosen.epochs < MIN_EPOCHS:
        options.error(f"--epochs must be at least {MIN_EPOCHS}, because memory settles in the first epochs")
    with workplace("memory-growth") as (folder, _):
        data = write_data(folder / "data.npz", chosen.data)
        values = memory_mib(train(folder, data, chosen.epochs, chosen.devices))
    half = len(values) // 2
    rise, error = slope(values[half:])
    before, _ = slope(values[:half])
    verdict = describe_slope(rise, error)
    print(
        f"{chosen.devices}: {len(values)} epochs: {values[0]:.1f} MiB after the first, "
        f"{values[half]:.1f} after {half + 1}, {values[-1]:.1f} at the end; slope of the first half "
        f"{before:+.4f}, of the second {rise:+.4f} MiB per epoch (standard error {error:.4f}): {verdict}"
    )
    return int(verdict == GROWS)


if __name__ == "__main__":
    sys.exit(main())
