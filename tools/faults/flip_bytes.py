"""Damage dataset and checkpoint files at random, open them, and compare what was read with what was written.

    python tools/faults/flip_bytes.py --trials 10000

A trial changes one byte, cuts the file, or fills a stretch with zeros. The answers:

detected  an error of hyrt's that names the file
equal     it opens, and all that is read is as it was (a time stamp in a .zip, padding)
legal     it opens with other values that are within the schema: only forms without checksums may
WRONG     other values from a form with checksums; or an error of another kind, or a signal

Forms: `npz` (compressed), `stored` (.npz, not compressed), `folder` (.npy files with the checksums of
meta.json), `bare` (a folder of .npy files without meta.json: nothing can tell a changed value from a true
one) and `checkpoint`.
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
    """A file, or a folder of files, of one form, and what it holds."""

    form: str
    path: Path
    read: Callable[[Path], Any]
    holds: Any


def samples(folder: Path) -> dict[str, Sample]:
    """One of every form."""
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
    """All that a graph holds."""
    graph: Graph = open_graph(path)
    features: Any = graph.features
    arrays = [graph.topology.indptr, graph.topology.indices, graph.labels, features.values]
    arrays += [graph.masks[name] for name in sorted(graph.masks)]
    return [
        f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes() for array in arrays
    ]


def read_checkpoint(path: Path) -> list[bytes]:
    """All that a checkpoint holds."""
    found = load_checkpoint(path)
    tensors = found.state["model"]
    return [
        repr((found.step, found.state["best"], list(tensors))).encode(),
        *(t.numpy().tobytes() for t in tensors.values()),
    ]


def damage(data: bytes, draw: random.Random) -> bytes:
    """Another file, by one byte or a stretch."""
    changed = bytearray(data)
    kind = draw.choice(("flip", "flip", "flip", "cut", "zero", "add"))
    at = draw.randrange(len(data))
    match kind:
        case "flip":
            changed[at] ^= draw.randrange(1, 256)
        case "cut":
            del changed[at:]
        case "zero":
            stop = min(len(data), at + draw.choice((16, 512, 4096)))
            changed[at:stop] = bytes(stop - at)
        case "add":
            changed += draw.randbytes(draw.choice((1, 100)))
    return bytes(changed)


def trial(sample: Sample, seed: int) -> str:
    """Damage one file of a sample, read, and put it back; what came of it."""
    draw = random.Random(seed)
    files = sorted(sample.path.iterdir()) if sample.path.is_dir() else [sample.path]
    file = draw.choice(files)
    whole = file.read_bytes()
    damaged = damage(whole, draw)
    if damaged == whole:
        return "equal"
    file.write_bytes(damaged)
    try:
        return judge(sample, file)
    finally:
        file.write_bytes(whole)


def judge(sample: Sample, file: Path) -> str:
    """What reading a damaged sample comes to."""
    try:
        found = sample.read(sample.path)
    except (DataError, CheckpointError) as error:
        named = sample.path.name in str(error) or file.stem in str(error)
        return "detected" if named else f"WRONG: names no file: {error}"
    except HyrtError as error:
        return f"WRONG: {type(error).__name__}: {error}"
    except BaseException as error:
        return f"WRONG: {type(error).__name__}: {error}"
    if found == sample.holds:
        return "equal"
    return "WRONG: other values, unnoticed" if sample.form in CHECKSUMMED else "legal"


def cuts(sample: Sample) -> list[str]:
    """Cut a checkpoint at every 4 KiB: each is noticed, and the one before it is read."""
    whole = sample.path.read_bytes()
    folder = sample.path.parent
    earlier = save_checkpoint(folder, 3, {"model": {}}, keep=2)
    answers = []
    for at in range(0, len(whole), BLOCK):
        sample.path.write_bytes(whole[:at])
        warned: list[str] = []
        newest = load_newest_checkpoint(folder, warned.append)
        good = newest.step == 3 and len(warned) == 1 and sample.path.name in warned[0]
        answers.append("detected" if good else f"WRONG: cut at {at}: {warned}")
    sample.path.write_bytes(whole)
    earlier.unlink()
    return answers


def in_children(count: int, seed: int, work: Callable[[int], tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Do trials in forked processes, some hundred each, so that a crash is counted and ends only its own."""
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
            told = [line.rstrip("\n").split("\t") for line in lines]
        answers.update((form, answer) for form, answer in told)
        _, status = os.waitpid(pid, 0)
        if status:
            answers["?", f"WRONG: status {status} at seed {seed + first + len(told)}"] += 1
    return answers


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.trials < 1:
        parser.error("--trials: at least 1")
    warnings.simplefilter("error")
    started = time.monotonic()
    with workplace("flips") as (folder, _):
        made = samples(folder)

        def work(seed: int) -> tuple[str, str]:
            sample = made[FORMS[seed % len(FORMS)]]
            return sample.form, trial(sample, seed)

        answers = in_children(options.trials, options.seed, work)
        answers.update(("cut at every 4 KiB", answer) for answer in cuts(made["checkpoint"]))
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
