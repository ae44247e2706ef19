"""Damage dataset and checkpoint files at random, open them, and compare the result with the original data.

    python tools/faults/flip_bytes.py --trials 10000

A trial changes one byte, truncates the file, or zeroes a range. Outcomes:

detected  an error of hyrt that names the file
equal     the file opens, and all data is unchanged (a time stamp in a .zip, padding)
legal     the file opens with other values that fit the schema: allowed only for formats without checksums
WRONG     other values from a format with checksums; or an error of another kind, or a signal

Formats: `npz` (compressed), `read_stored_range` (.npz, not compressed), `folder` (.npy files with the
checksums of meta.json), `bare` (a folder of .npy files without meta.json, where changed values cannot be
detected) and `checkpoint`.
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trials import make_parser, print_table, workplace, write_data

from hyrt.errors import CheckpointError, DataError, HyrtError
from hyrt.graph import open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.graph import Graph
from hyrt.training.checkpoint import load_checkpoint, load_newest_checkpoint, save_checkpoint

FORMS = ("npz", "stored", "folder", "bare", "checkpoint")
CHECKSUMMED = ("npz", "stored", "folder", "checkpoint")
BATCH = 250
BLOCK = 4096


@dataclass(frozen=True)
class Sample:
    """A file or folder of one format, and its original data."""

    form: str
    path: Path
    read: Callable[[Path], Any]
    holds: Any


def make_samples(folder: Path) -> dict[str, Sample]:
    """Make a sample of every format."""
    npz, stored = folder / "npz" / "tiny.npz", folder / "stored" / "tiny.npz"
    for path in (npz, stored):
        path.parent.mkdir()
    write_data(npz)
    with zipfile.ZipFile(npz) as source, zipfile.ZipFile(stored, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with_sums, bare = folder / "folder" / "tiny", folder / "bare" / "tiny"
    for path in (with_sums, bare):
        path.parent.mkdir()
        convert(Conversion(str(npz), path))
    (bare / "meta.json").unlink()
    weights = {"model": {f"layer.{i}": torch.randn(64, 64) for i in range(8)}, "best": {"value": 0.5}}
    checkpoint = save_checkpoint(folder / "checkpoint", 7, weights, keep=1)
    holds = read_graph(npz)
    made = [
        Sample(form, path, read_graph, holds)
        for form, path in zip(FORMS[:4], (npz, stored, with_sums, bare), strict=True)
    ]
    made.append(Sample("checkpoint", checkpoint, read_checkpoint, read_checkpoint(checkpoint)))
    return {sample.form: sample for sample in made}


def read_graph(path: Path) -> list[bytes]:
    """Return all data of a graph."""
    graph: Graph = open_graph(path)
    features: Any = graph.features
    arrays = [graph.topology.indptr, graph.topology.indices, graph.labels, features.values]
    arrays += [graph.masks[name] for name in sorted(graph.masks)]
    return [
        f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes() for array in arrays
    ]


def read_checkpoint(path: Path) -> list[bytes]:
    """Return all data of a checkpoint."""
    checkpoint = load_checkpoint(path)
    tensors = checkpoint.state["model"]
    return [
        repr((checkpoint.step, checkpoint.state["best"], list(tensors))).encode(),
        *(t.numpy().tobytes() for t in tensors.values()),
    ]


def damage(data: bytes, draw: random.Random) -> bytes:
    """Return a damaged copy, with one changed byte or range."""
    changed = bytearray(data)
    kind = draw.choice(("flip", "flip", "flip", "cut", "zero", "add"))
    position = draw.randrange(len(data))
    match kind:
        case "flip":
            changed[position] ^= draw.randrange(1, 256)
        case "cut":
            del changed[position:]
        case "zero":
            stop = min(len(data), position + draw.choice((16, 512, 4096)))
            changed[position:stop] = bytes(stop - position)
        case "add":
            changed += draw.randbytes(draw.choice((1, 100)))
    return bytes(changed)


def run_trial(sample: Sample, seed: int) -> str:
    """Damage one file of a sample, read the sample, restore the file, and return the outcome."""
    draw = random.Random(seed)
    files = sorted(sample.path.iterdir()) if sample.path.is_dir() else [sample.path]
    file = draw.choice(files)
    original = file.read_bytes()
    damaged = damage(original, draw)
    if damaged == original:
        return "equal"
    file.write_bytes(damaged)
    try:
        return classify(sample, file)
    finally:
        file.write_bytes(original)


def classify(sample: Sample, file: Path) -> str:
    """Return the outcome of reading a damaged sample."""
    try:
        values = sample.read(sample.path)
    except (DataError, CheckpointError) as error:
        named = sample.path.name in str(error) or file.stem in str(error)
        return "detected" if named else f"WRONG: names no file: {error}"
    except HyrtError as error:
        return f"WRONG: {type(error).__name__}: {error}"
    except BaseException as error:
        return f"WRONG: {type(error).__name__}: {error}"
    if values == sample.holds:
        return "equal"
    return "WRONG: other values, unnoticed" if sample.form in CHECKSUMMED else "legal"


def truncate_everywhere(sample: Sample) -> list[str]:
    """Truncate a checkpoint at every 4 KiB: each must be detected, and the previous one must be read."""
    original = sample.path.read_bytes()
    folder = sample.path.parent
    earlier = save_checkpoint(folder, 3, {"model": {}}, keep=2)
    answers = []
    for length in range(0, len(original), BLOCK):
        sample.path.write_bytes(original[:length])
        warned: list[str] = []
        newest = load_newest_checkpoint(folder, warned.append)
        good = newest.step == 3 and len(warned) == 1 and sample.path.name in warned[0]
        answers.append("detected" if good else f"WRONG: cut at {length}: {warned}")
    sample.path.write_bytes(original)
    earlier.unlink()
    return answers


def run_in_children(
    count: int, seed: int, work: Callable[[int], tuple[str, str]]
) -> Counter[tuple[str, str]]:
    """Run trials in forked processes, some hundred in each, so that a crash ends only one process."""
    answers: Counter[tuple[str, str]] = Counter()
    for first in range(0, count, BATCH):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as out:
                for index in range(first, min(first + BATCH, count)):
                    form, answer = work(seed + index)
                    out.write(f"{form}\t{' '.join(answer.split())}\n")
                    out.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            results = [line.rstrip("\n").split("\t") for line in lines]
        answers.update((form, answer) for form, answer in results)
        _, status = os.waitpid(pid, 0)
        if status:
            answers["?", f"WRONG: status {status} at seed {seed + first + len(results)}"] += 1
    return answers


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.trials < 1:
        parser.error("--trials must be at least 1")
    warnings.simplefilter("error")
    started = time.monotonic()
    with workplace("flips") as (folder, _):
        made = make_samples(folder)

        def work(seed: int) -> tuple[str, str]:
            sample = made[FORMS[seed % len(FORMS)]]
            return sample.form, run_trial(sample, seed)

        answers = run_in_children(options.trials, options.seed, work)
        answers.update(("cut at every 4 KiB", answer) for answer in truncate_everywhere(made["checkpoint"]))
    kinds = ("detected", "equal", "legal")
    rows = []
    for form in (*FORMS, "cut at every 4 KiB"):
        mine = {answer: count for (name, answer), count in answers.items() if name == form}
        counts = [mine.get(kind, 0) for kind in kinds]
        rows.append((form, sum(mine.values()), *counts, sum(mine.values()) - sum(counts)))
    print_table(("form", "trials", *kinds, "wrong"), rows)
    wrong = {key: count for key, count in answers.items() if key[1] not in kinds}
    for (form, answer), count in wrong.items():
        print(f"{form}: {answer} ({count} x)")
    print(f"{sum(answers.values())} trials in {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
