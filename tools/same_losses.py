"""Check that a code change does not change any bit of the trained models.

    python tools/same_losses.py                             compare with the record, or with an earlier commit
    python tools/same_losses.py --against-checkout HEAD~3   train with that commit as well, and compare
    python tools/same_losses.py gat-two-cpus gin-resumed    run only these configurations
    python tools/same_losses.py --record                    compare, and write the entry of this processor

Ten small runs of `hyrt run` cover the models, samplers, devices and precisions, sparse features, an uneven
split, and a resume in the middle of an epoch. The tool compares the loss of every step, the number of sampled
edges, the metrics and the final weights.

The last bits depend on the processor and on the library versions, which are part of each entry of the record.
If no entry matches this machine, the tool also trains with an earlier commit on this machine: the last tag,
the commit where this branch left main, or the previous commit. A source tree without git is compared up to
rounding only.

A commit that changes bits on purpose increases the bit counter in the record; `--record` does this if it
finds other bits than before. Bits are never compared across different counters; losses must agree up to
rounding even then. The exit code is 1 if a configuration differs or cannot be run.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parent / name) for name in ("bench", "faults")]

from forked_runs import IMPORTED
from loss_records import Base, Record, choose_base, differences, kind_of
from source_tree import ROOT, environment_of, exclude_installed_modules, find_function, source_tree

RECORD = Path(__file__).with_suffix(".json")
LIMIT_S = 1800

# Nothing in these settings may depend on the clock or the number of cores.
COMMON = (
    "--quiet --name run --data synthetic:tiny data.batch_size=128 train.epochs=2 model.hidden=32 "
    "balance.policy=static balance.predict=false "
    # Explicit values, because their defaults have changed since the record was made.
    "train.lr=0.003 train.weight_decay=0 model.dropout=0 model.norm=none data.normalize=none "
    "runtime.sample_threads=1 runtime.load_threads=1 runtime.train_threads=1 "
    # A new checkout compiles kernels, and a busy machine is slow: neither is a failure.
    "runtime.stall_timeout_s=900 "
)


@dataclass(frozen=True)
class Configuration:
    """One run.

    Parameters
    ----------
    words
        Arguments of `hyrt run` after `COMMON`.
    resumed_at
        Step after which the run is resumed from a checkpoint; 0 trains without interruption.
    rounding
        Largest relative difference between two losses that another order of additions may cause. AVX-512 code
        and scalar code differ by up to 2.5e-7 (four units in the last place of fp32) in these runs. A product
        in bf16 is rounded to 2^-9.
    """

    words: str
    resumed_at: int = 0
    rounding: float = 1e-5


CONFIGURATIONS = {
    "graphsage-two-cpus": Configuration(
        "--model graphsage --devices cpu:0,cpu:1 split=[37,91] model.dropout=0.5 model.input_dropout=0.1"
    ),
    "gcn-three-layers": Configuration(
        "--model gcn --devices cpu:0 model.layers=3 sampler.fanout=[10,5,-1] train.weight_decay=5e-4 "
        "runtime.fuse_load=false runtime.pipelined=false runtime.train_threads=2"
    ),
    "gin-resumed": Configuration(
        "--model gin --devices cpu:0 model.norm=layer train.optimizer=SGD train.lr=0.001 "
        "'train.optimizer_options={momentum: 0.9}' train.schedule=ExponentialLR "
        "'train.schedule_options={gamma: 0.5}' train.class_weights=balanced evaluate.mode=sampled",
        resumed_at=7,
    ),
    "gat-two-cpus": Configuration(
        "--model gat --devices cpu:0,cpu:1 split=[91,37] model.dropout=0.3 runtime.sample_threads=2"
    ),
    "graphsage-max-bf16": Configuration(
        "--model graphsage --devices cpu:0 model.aggregate=max train.precision=bf16", rounding=1e-2
    ),
    "graphsage-sparse": Configuration(
        "--model graphsage --devices cpu:0 data.source=../sparse.npz data.normalize=row model.layers=3 "
        "model.norm=layer model.residual=true model.dropout=0.2 model.input_dropout=0.2"
    ),
    "gcn-saint": Configuration(
        "--model gcn --devices cpu:0,cpu:1 split=[1,3] sampler.kind=saint sampler.units=4 sampler.roots=25"
    ),
    "graphsage-opencl": Configuration(
        "--model graphsage --devices opencl:0 sampler.on_device=true model.dropout=0.5 "
        "model.input_dropout=0.1"
    ),
    "gcn-cpu-opencl": Configuration("--model gcn --devices cpu:0,opencl:0 split=[37,91]"),
    "graphsage-sum-fpga-csim": Configuration(
        "--model graphsage --devices cpu:0,fpga-csim:0 split=[91,37] model.aggregate=sum"
    ),
}
# Keys of a record's `load_machine` that matter only for configurations whose arguments contain the value.
ONLY_FOR = {"opencl": "opencl", "compiler": "fpga"}


def train(folder: Path, names: Sequence[str]) -> None:
    """Train configurations with the hyrt on the path, each in a subfolder with its name."""
    # Runs are forked off this process, so that common imports happen once.
    exclude_installed_modules()
    find_function("prepare_process")()
    for name in IMPORTED:
        # The module may have another name in another commit.
        with suppress(ImportError):
            import_module(name)
    gc.freeze()
    if _hyrt("devices --json", folder):
        sys.exit((folder / "errors.txt").read_text())
    write_sparse_graph(folder / "sparse.npz")
    for name in names:
        (place := folder / name).mkdir()
        configuration = CONFIGURATIONS[name]
        words = f"run {COMMON} {configuration.words} "
        if not configuration.resumed_at:
            _hyrt(words, place)
        elif _hyrt(words + "train.epochs=1 checkpoint.every_steps=1 checkpoint.keep=99", place) == 0:
            for checkpoint in (place / "runs" / "run" / "checkpoints").iterdir():
                if int(re.split(r"[-.]", checkpoint.name)[1]) > configuration.resumed_at:
                    checkpoint.unlink()
            _hyrt("run --quiet --resume runs/run train.epochs=2", place)


def _hyrt(words: str, folder: Path) -> int:
    """Run a hyrt command in a separate process; return the exit code."""
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.chdir(folder)
    for descriptor, name in ((1, "output.txt"), (2, "errors.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = ["hyrt", *shlex.split(words)]
    runpy.run_module("hyrt", run_name="__main__", alter_sys=True)
    sys.exit()


def write_sparse_graph(path: Path) -> None:
    """Write a graph with sparse features that depend on the class; its random integers are portable."""
    import numpy as np

    vertices, degree, entries, width, classes = 1500, 8, 12, 200, 5
    random = np.random.default_rng(1)
    labels = random.integers(0, classes, vertices)
    sources = np.sort(random.integers(0, vertices, (vertices, degree)))
    is_edge = (np.diff(sources, prepend=-1) > 0) & (sources != np.arange(vertices)[:, None])
    columns = np.sort(np.column_stack([labels, random.integers(0, width, (vertices, entries))]))
    is_entry = np.diff(columns, prepend=-1) > 0
    part = random.integers(0, 4, vertices)
    np.savez(
        path,
        indptr=np.append(0, is_edge.sum(1).cumsum()),
        indices=sources[is_edge].astype(np.int32),
        labels=labels,
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
        feat_indptr=np.append(0, is_entry.sum(1).cumsum()),
        feat_indices=columns[is_entry].astype(np.int32),
        feat_values=random.integers(1, 9, is_entry.sum()).astype(np.float32),
        feat_shape=np.array([vertices, width]),
    )


def measure(checkout: Path, names: Sequence[str]) -> dict[str, Any]:
    """Train configurations with the code of a checkout; return a record of the results."""
    with tempfile.TemporaryDirectory(prefix="hyrt-same-losses-") as temporary:
        folder = Path(temporary)
        old_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment = {
            # Reuse compiled kernels, but not the rates measured on this machine.
            "POCL_CACHE_DIR": str(old_cache / "pocl" / "kcache"),
            "HYRT_HLS_CACHE_DIR": str(old_cache / "hyrt" / "hls"),
            "OMP_WAIT_POLICY": "PASSIVE",
            **environment_of(checkout, folder / "declared"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        command = [sys.executable, __file__, "--train-into", temporary, *names]
        subprocess.run(command, env=environment, check=True, timeout=LIMIT_S)
        devices = json.loads((folder / "output.txt").read_text())["devices"]
        return {
            "machine": machine({device["name"]: device["description"] for device in devices}),
            "configurations": {name: outcome(folder / name) for name in names},
        }


def machine(devices: dict[str, str]) -> dict[str, str]:
    """Return the machine properties that affect the last bits, given device descriptions by name."""
    import torch
    from llvmlite import binding

    vectors = re.compile("avx|fma|f16c|amx|neon|sve|bf16")
    features = sorted(name for name, there in binding.get_host_cpu_features().items() if there)
    compiler = subprocess.run("g++ -dumpfullversion", shell=True, capture_output=True, text=True)
    switches = re.compile(
        "ATEN_CPU|MKL_|DNNL_|ONEDNN_|NUMBA_CPU|NPY_DISABLE|OPENBLAS_CORE|POCL_KERNELLIB|HYRT_EMULATED"
    )
    return {
        "processor": binding.get_host_cpu_name(),
        "instructions": " ".join(filter(vectors.match, features)),
        "switches": " ".join(
            f"{name}={os.environ[name]}" for name in sorted(filter(switches.match, os.environ))
        ),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        **{name: version(name) for name in ("numpy", "numba", "llvmlite")},
        "compiler": compiler.stdout.strip(),
        # Without the number of compute units, which does not affect bits.
        "opencl": devices.get("opencl:0", "").rpartition(",")[0],
    }


def outcome(place: Path) -> dict[str, Any]:
    """Return the results of a run; or its last error line as `failed`, and whether it was `refused` before
    start.
    """
    from safetensors import safe_open

    run = place / "runs" / "run"
    summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
    if summary.get("status") != "finished":
        error = (place / "errors.txt").read_text().strip().rpartition("\n")[2]
        return {"failed": error, "refused": not run.exists()}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    groups = [line for line in lines if line["event"] == "steps"]
    weights = hashlib.sha256()
    with safe_open(max((run / "checkpoints").iterdir()), "np") as file:
        for name in sorted(name for name in file.keys() if name.startswith("model.")):  # noqa: SIM118
            weights.update(name.encode() + file.get_tensor(name).tobytes())
    return {
        "edges": sum(
            round(group["mteps"] * 1e6 * group["step_s"] * len(group["losses"])) for group in groups
        ),
        "losses": " ".join(loss.hex() for group in groups for loss in group["losses"]),
        "metrics": summary["metrics"],
        "weights": weights.hexdigest(),
    }


def judge(found: dict[str, Any], record: Record, names: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """Compare configurations with this machine's entry of a record, or else with an earlier commit.

    Parameters
    ----------
    found
        Results of this source tree on this machine.
    record
        The record of this source tree.
    names
        The configurations.

    Returns
    -------
    Per configuration: how it was compared, and the differences.
    """
    verdicts, remaining = {}, []
    for name in names:
        entry = next((one for one in record.entries if not changes(found, one, name)), None)
        if entry or "failed" in found["configurations"][name]:
            verdicts[name] = compare(found, entry, name)
        else:
            remaining.append(name)
    if not remaining:
        return verdicts
    base = choose_base(ROOT, str(RECORD.relative_to(ROOT)), record.bits)
    trained: dict[str, Any] | None = None
    if base.commit:
        with source_tree(base.commit) as folder:
            trained = measure(folder, remaining)
    for name in remaining:
        verdicts[name] = judge_with_base(found, record, name, base, trained)
    return verdicts


def judge_with_base(
    found: dict[str, Any], record: Record, name: str, base: Base, trained: dict[str, Any] | None
) -> tuple[str, list[str]]:
    """Compare a configuration with an earlier commit on this machine, and with any entry up to rounding."""
    rounding, result = CONFIGURATIONS[name].rounding, found["configurations"][name]
    hows, problems = [], []
    if trained is None:
        hows.append(f"bits not compared: {base.about}")
    elif failure := trained["configurations"][name].get("failed"):
        hows.append(f"bits not compared: {base.about} cannot run it ({failure})")
        # A new configuration may need a setting that the earlier commit does not have.
        problems += [] if trained["configurations"][name]["refused"] else [failure]
    else:
        bound = 0.0 if base.has_equal_bits else rounding
        hows.append(f"compared {_to(bound)} with {base.about}")
        problems += differences(result, trained["configurations"][name], bound)
    entries = (one["configurations"].get(name, {"failed": ""}) for one in record.entries)
    if entry := next((one for one in entries if "failed" not in one), None):
        hows.append(f"compared {_to(rounding)} with another machine's entry")
        problems += differences(result, entry, rounding)
    return ", ".join(hows), problems


def _to(bound: float) -> str:
    return f"up to {bound:.0e}" if bound else "bit for bit"


def changes(found: dict[str, Any], entry: dict[str, Any], name: str) -> list[str]:
    """Return the machine properties that differ between two entries and can change a configuration's bits."""
    if name not in entry["configurations"]:
        return ["configurations"]
    relevant = [key for key in found["machine"] if ONLY_FOR.get(key, "") in CONFIGURATIONS[name].words]
    return [key for key in relevant if found["machine"][key] != entry["machine"].get(key)]


def compare(found: dict[str, Any], entry: dict[str, Any] | None, name: str) -> tuple[str, list[str]]:
    """Compare a configuration bit for bit with a result from the same kind of machine."""
    pair = [one["configurations"][name] for one in (found, entry) if one]
    if failures := [one["failed"] for one in pair if "failed" in one]:
        return "not compared", failures
    return "compared bit for bit", differences(pair[0], pair[1], 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(CONFIGURATIONS)}; default: all"
    )
    parser.add_argument(
        "--checkout",
        default=str(ROOT),
        help="train with the code of this folder or commit; default: this checkout",
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument(
        "--against-checkout", metavar="CHECKOUT", help="compare with the code of this folder or commit"
    )
    task.add_argument(
        "--record", action="store_true", help="also write what this machine computed to the record"
    )
    task.add_argument("--train-into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(CONFIGURATIONS):
        parser.error(f"unknown configuration {', '.join(sorted(unknown))}")
    if arguments.record and (arguments.names or arguments.checkout != str(ROOT)):
        parser.error("a record entry contains all configurations of this checkout: use --record alone")
    names = arguments.names or list(CONFIGURATIONS)
    if arguments.train_into:
        train(arguments.train_into, names)
        return 0
    with source_tree(arguments.checkout) as folder:
        found = measure(folder, names)
    record = Record.parse(RECORD.read_text())
    if arguments.against_checkout:
        with source_tree(arguments.against_checkout) as folder:
            expected = measure(folder, names)
        verdicts = {name: compare(found, expected, name) for name in names}
    else:
        verdicts = judge(found, record, names)
    different = 0
    for name, (how, problems) in verdicts.items():
        different += bool(problems)
        print(f"{name}: {how}: {'DIFFERENT: ' + '; '.join(problems) if problems else 'equal'}")
    print(f"{len(names) - different} of {len(names)} equal")
    if not arguments.record:
        return int(bool(different))
    failed = [name for name, one in found["configurations"].items() if "failed" in one]
    if failed:
        print(f"nothing was recorded, because {', '.join(failed)} cannot be run", file=sys.stderr)
        return 1
    record = record.with_entry(found, bits_changed=bool(different))
    record.write(RECORD)
    print(f"recorded {' '.join(kind_of(found['machine'])[:1])}; the count of bits is {record.bits}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
