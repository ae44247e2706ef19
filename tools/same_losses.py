"""Check that a code change does not change any bit of the trained models.

    python tools/same_losses.py                             compare with the record, or with an earlier commit
    python tools/same_losses.py --against-checkout HEAD~3   train with that commit as well, and compare
    python tools/same_losses.py gat-two-cpus gin-resumed    run only these configurations
    python tools/same_losses.py --record                    compare, and write the entry of this processor

Small runs of `hyrt run` cover the models, samplers, devices and precisions; cached, quantized, mapped, sparse
and heterogeneous features; edge data; links; custom layers; full graphs in tiles; ranks with each strategy;
uneven splits; and resumes in the middle of an epoch. The tool compares the loss of every step, the number of
sampled edges, the metrics and the final weights. A configuration is skipped if this machine lacks a device,
and not compared if the earlier commit refuses it: neither counts as equal. The device `cuda:0` is torch on
the CPU, with the driver that the tests use in place of a GPU's.

The last bits depend on the processor and on the library versions, which are part of each entry of the record.
Configurations without a matching entry are also trained with an earlier commit on this machine: the last tag,
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
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

sys.path += [str(Path(__file__).resolve().parent / name) for name in ("bench", "faults")]

from forked_runs import IMPORTED
from loss_records import Base, Record, choose_base, compare, kind_of, state_of
from source_tree import (
    ROOT,
    declares,
    environment_of,
    exclude_installed_modules,
    find_function,
    source_tree,
)

RECORD = Path(__file__).with_suffix(".json")
LIMIT_S = 3600

# Nothing in these settings may depend on the clock or the number of cores.
COMMON = (
    "--quiet --name run --data synthetic:tiny model.hidden=32 "
    "balance.policy=static balance.predict=false "
    # Explicit values, because their defaults have changed since the record was made.
    "train.lr=0.003 train.weight_decay=0 model.dropout=0 model.norm=none data.normalize=none "
    "runtime.sample_threads=1 runtime.load_threads=1 runtime.train_threads=1 "
    # A new checkout compiles kernels, and a busy machine is slow: neither is a failure.
    "runtime.stall_timeout_s=900 "
)
HETERO = "synthetic:hetero,vertices=2001,edges=20000,features=7,classes=3"


@dataclass(frozen=True)
class Configuration:
    """One run.

    Parameters
    ----------
    words
        Arguments of `hyrt run` after `COMMON`.
    epochs
        Number of epochs; each is one step of a full graph.
    resumed_at
        Step after which the run is resumed from a checkpoint; 0 trains without interruption.
    ranks
        Number of ranks, each a process.
    rounding
        Largest relative difference between two losses that another order of additions may cause. AVX-512 code
        and scalar code differ by up to 2.5e-7 (four units in the last place of fp32) in these runs. A product
        in bf16 is rounded to 2^-9.
    """

    words: str
    epochs: int = 2
    resumed_at: int = 0
    ranks: int = 1
    rounding: float = 1e-5

    @property
    def kinds(self) -> set[str]:
        """Return the kinds of devices that it trains on."""
        (devices,) = re.findall(r"--devices (\S+)", self.words)
        return set(re.findall(r"([a-z-]+):", devices))


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
    # Feature rows: cached, quantized, mapped and sparse; each with a sampler of its own.
    "graphsage-cached": Configuration(
        "--model graphsage --devices opencl:0 data.cache=20% runtime.fuse_load=false sampler.kind=labor "
        "sampler.iterations=1"
    ),
    "gcn-quantized-cached": Configuration(
        "--model gcn --devices cpu:0,opencl:0 split=[37,91] data.feature_dtype=int8 data.cache=20% "
        "runtime.fuse_load=false"
    ),
    "gin-quantized-shadow": Configuration(
        "--model gin --devices cpu:0,cpu:1 split=[37,91] data.feature_dtype=int8-columns "
        "data.rounding=stochastic sampler.kind=shadow sampler.hop_neighbors=4"
    ),
    "graphsage-quantized-torch": Configuration(
        "--model graphsage --devices cpu:0,cuda:0 split=[37,91] data.feature_dtype=int8 data.cache=20% "
        "model.aggregate=sum"
    ),
    "gat-mapped": Configuration(
        "--model gat --devices cpu:0 data.source=../mapped data.feature_dtype=bfloat16 sampler.kind=fastgcn "
        "sampler.layer_size=201"
    ),
    "gcn-sparse-cpu-opencl": Configuration(
        "--model gcn --devices cpu:0,opencl:0 split=[91,37] data.source=../sparse.npz sampler.kind=ladies "
        "sampler.layer_size=201"
    ),
    "graphsage-weighted": Configuration(
        "--model graphsage --devices cpu:0 data.source=../edge_weight.npz sampler.kind=weighted"
    ),
    "gine-cluster": Configuration(
        "--model gine --devices cpu:0,cpu:1 split=[1,1] data.source=../edge_features.npz "
        "sampler.kind=cluster sampler.method=block sampler.parts=20 sampler.groups=2"
    ),
    "ggnn-edge-types": Configuration(
        "--model ggnn --devices cpu:0 data.source=../edge_type.npz 'model.options={edge_types: 3}'"
    ),
    # Heterogeneous graphs and links.
    "rgcn-hetero": Configuration(
        f"--model rgcn --devices cpu:0,cpu:1 split=[37,91] data.source={HETERO} 'model.options={{bases: 2}}' "
        "'sampler.relation_fanout={cites: 3}'"
    ),
    "rsage-hetero-torch": Configuration(f"--model rsage --devices cuda:0 data.source={HETERO}"),
    "hgt-hetero-full-resumed": Configuration(
        f"--model hgt --devices cpu:0 --full-graph data.source={HETERO} evaluate.every=1",
        epochs=4,
        resumed_at=2,
    ),
    "gcn-links": Configuration(
        "--model gcn --devices cpu:0,cpu:1 split=[250,262] data.batch_size=512 train.objective=links "
        "links.decoder=distmult links.negatives=degree links.candidates=20",
        epochs=1,
    ),
    "rgat-hetero-links": Configuration(
        f"--model rgat --devices cpu:0 data.source={HETERO} data.batch_size=512 train.objective=links "
        "links.relation=writes links.loss=ranking links.num_negatives=3 links.candidates=20"
    ),
    # Layers of users, and full graphs in tiles.
    "user-gat": Configuration(
        "--model user-layers --devices cpu:0 'model.options={form: GAT}' model.dropout=0.3"
    ),
    "user-gatv2-tiles-opencl": Configuration(
        "--model user-layers --devices opencl:0 --full-graph 'model.options={form: GATv2}' fullgraph.chunks=3"
    ),
    "gcn-tiles-two-cpus-resumed": Configuration(
        "--model gcn --devices cpu:0=1,cpu:1=2 --full-graph fullgraph.chunks=3 model.dropout=0.5 "
        "evaluate.every=1",
        epochs=4,
        resumed_at=2,
    ),
    "gin-tiles-cpu-opencl": Configuration(
        "--model gin --devices cpu:0=1,opencl:0=2 --full-graph fullgraph.chunks=5 fullgraph.filter_below=1"
    ),
    "graphsage-tiles-torch": Configuration(
        "--model graphsage --devices cuda:0 --full-graph fullgraph.chunks=3 model.dropout=0.5"
    ),
    # Ranks.
    "graphsage-home": Configuration(
        "--model graphsage --devices cpu:0 data.source=../parts model.dropout=0.5 distributed.strategy=home "
        "distributed.cache=20% distributed.comm_dtype=bfloat16 distributed.shared_memory_features=false",
        ranks=2,
    ),
    "gcn-hopgnn": Configuration(
        "--model gcn --devices cpu:0 data.source=../parts distributed.strategy=hopgnn "
        "distributed.time_steps=2",
        ranks=2,
    ),
    "gcn-p3": Configuration(
        "--model gcn --devices cpu:0 data.source=../parts distributed.strategy=p3", ranks=2
    ),
    "gat-naive-migration": Configuration(
        "--model gat --devices cpu:0 data.source=../parts distributed.strategy=naive-migration", ranks=2
    ),
    "gin-model-centric-resumed": Configuration(
        "--model gin --devices cpu:0 data.source=../parts distributed.strategy=model-centric",
        ranks=2,
        resumed_at=7,
    ),
    "graphsage-local": Configuration(
        "--model graphsage --devices cpu:0 data.source=../parts distributed.strategy=local", ranks=2
    ),
    "rgcn-hetero-ranks": Configuration("--model rgcn --devices cpu:0 data.source=../hetero", ranks=2),
    "gcn-tiles-ranks": Configuration(
        "--model gcn --devices cpu:0 --full-graph data.source=../parts fullgraph.chunks=2", ranks=2
    ),
}
# Keys of a record's `machine` that matter only for configurations whose arguments contain the value.
ONLY_FOR = {"opencl": "opencl", "compiler": "fpga"}
# Commands that write the data of a configuration, if its arguments contain the key.
PREPARED = {
    "../mapped": "data convert synthetic:tiny ../mapped",
    "../parts": "partition --data synthetic:tiny --parts 2 --method random -o ../parts",
    "../hetero": f"data convert {HETERO} ../hetero",
}
# Names that a tree may know instead of the present ones.
FORMER_NAMES = {
    "synthetic:hetero": "synthetic:typed",
    "data.feature_dtype": "data.rows",
    "distributed.comm_dtype": "distributed.wire",
    "distributed.shared_memory_features": "distributed.share_rows",
}


def prepare(folder: Path) -> None:
    """Import what all runs need, and declare custom layers in a folder."""
    # Runs are forked off this process, so that common imports happen once.
    exclude_installed_modules()
    find_function("prepare_process")()
    from user_layers import install_user_layers

    sys.path += install_user_layers(folder / "site")["PYTHONPATH"].split(os.pathsep)
    for name in IMPORTED:
        # The module may have another name in another commit.
        with suppress(ImportError):
            import_module(name)
    gc.freeze()


def train(folder: Path, names: Sequence[str]) -> None:
    """Train configurations with the hyrt on the path, each in a subfolder with its name."""
    prepare(folder)
    if _hyrt("devices --json", folder):
        sys.exit((folder / "errors.txt").read_text())
    devices = json.loads((folder / "output.txt").read_text())["devices"]
    # Torch's device code runs on the CPU: see `put_torch_device_on_cpu`.
    kinds = {device["kind"] for device in devices} | {"cuda"}
    write_graphs(folder)
    chosen = {name: CONFIGURATIONS[name] for name in names}
    (prepared := folder / "prepared").mkdir()
    for data, words in PREPARED.items():
        is_read = any(f"data.source={data}" in one.words.split() for one in chosen.values())
        if is_read and _hyrt(words, prepared):
            sys.exit((prepared / "errors.txt").read_text())
    for name, configuration in chosen.items():
        (place := folder / name).mkdir()
        if missing := configuration.kinds - kinds:
            (place / "skipped.txt").write_text(f"this machine has no {', '.join(sorted(missing))} device")
            continue
        ranks = configuration.ranks
        words = f"run {COMMON} {configuration.words} train.epochs="
        if "--full-graph" not in words and "data.batch_size" not in words:
            words = words.replace("train.epochs=", "data.batch_size=128 train.epochs=")
        if not configuration.resumed_at:
            _hyrt(f"{words}{configuration.epochs}", place, ranks)
            continue
        words += f"{configuration.epochs - 1} checkpoint.every_steps=1 checkpoint.keep=99"
        if _hyrt(words, place, ranks) == 0:
            for checkpoint in (place / "runs" / "run" / "checkpoints").iterdir():
                if int(re.split(r"[-.]", checkpoint.name)[1]) > configuration.resumed_at:
                    checkpoint.unlink()
            _hyrt(f"run --quiet --resume runs/run train.epochs={configuration.epochs}", place, ranks)


def _hyrt(words: str, folder: Path, ranks: int = 1) -> int:
    """Run a hyrt command in a separate process per rank; return the first exit code that is not 0."""
    for name, former in FORMER_NAMES.items():
        if name in words and not declares(re.split("[.:]", name)[1]):
            words = words.replace(name, former)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        processes.append(process := os.fork())
        if not process:
            if ranks > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
                os.environ |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            _become(words, folder, f"-{rank}" if rank else "")
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    return next(filter(None, codes), 0)


def _become(words: str, folder: Path, suffix: str) -> NoReturn:
    """Run a hyrt command in this process, which then ends."""
    os.chdir(folder)
    for descriptor, name in ((1, f"output{suffix}.txt"), (2, f"errors{suffix}.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    if "cuda:0" in words:
        put_torch_device_on_cpu()
    sys.argv = ["hyrt", *shlex.split(words)]
    runpy.run_module("hyrt", run_name="__main__", alter_sys=True)
    sys.exit()


def put_torch_device_on_cpu() -> None:
    """Replace the GPU of `cuda:0` by the double that the tests use: torch's operators compute on the CPU."""
    import torch

    import hyrt

    device: Any = import_module("hyrt_devices.cuda.device").CudaDevice
    double = Path(hyrt.__file__).parents[1] / "tests" / "unit" / "cuda" / "fake_driver.py"
    driver = runpy.run_path(str(double))["FakeDriver"]
    properties = SimpleNamespace(name="CPU", multi_processor_count=1, total_memory=1 << 30)
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_properties = lambda *_: properties
    device.open = classmethod(lambda cls, info, options: cls(info, options, driver()))


def write_graphs(folder: Path) -> None:
    """Write graphs with features that depend on the class; their random integers are portable.

    One has sparse features, and one each has the edge data in its name.
    """
    import numpy as np

    vertices, degree, entries, width, classes = 1500, 8, 12, 200, 5
    random = np.random.default_rng(1)
    labels = random.integers(0, classes, vertices)
    sources = np.sort(random.integers(0, vertices, (vertices, degree)))
    is_edge = (np.diff(sources, prepend=-1) > 0) & (sources != np.arange(vertices)[:, None])
    columns = np.sort(np.column_stack([labels, random.integers(0, width, (vertices, entries))]))
    is_entry = np.diff(columns, prepend=-1) > 0
    part = random.integers(0, 4, vertices)
    graph = {
        "indptr": np.append(0, is_edge.sum(1).cumsum()),
        "indices": sources[is_edge].astype(np.int32),
        "labels": labels,
        "train_mask": part < 2,
        "val_mask": part == 2,
        "test_mask": part == 3,
    }
    sparse = {
        "feat_indptr": np.append(0, is_entry.sum(1).cumsum()),
        "feat_indices": columns[is_entry].astype(np.int32),
        "feat_values": random.integers(1, 9, is_entry.sum()).astype(np.float32),
        "feat_shape": np.array([vertices, width]),
    }
    np.savez(folder / "sparse.npz", **graph, **sparse)
    features = random.integers(-4, 5, (vertices, 16)).astype(np.float32) / 4
    features[np.arange(vertices), labels] += 1
    for name, shape in (("edge_weight", ()), ("edge_features", (3,)), ("edge_type", ())):
        drawn = random.integers(0, 3, (is_edge.sum(), *shape))
        edge_data = drawn if name == "edge_type" else (drawn + 1).astype(np.float32) / 2
        np.savez(folder / f"{name}.npz", **graph, features=features, **{name: edge_data})


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
    """Return the results of a run; the reason if it was `skipped`; or its last error line as `failed`, and
    whether it was `refused` before start.
    """
    from safetensors import safe_open

    if (reason := place / "skipped.txt").exists():
        return {"skipped": reason.read_text()}

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
        result = found["configurations"][name]
        if entry := next((one for one in record.entries if not changes(found, one, name)), None):
            verdicts[name] = compare(result, entry["configurations"][name], "this processor's entry")
        elif "losses" in result:
            remaining.append(name)
        else:
            verdicts[name] = compare(result, {}, "")
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
    how, problems = f"not compared: {base.about}", []
    if trained:
        bound = 0.0 if base.has_equal_bits else rounding
        how, problems = compare(result, trained["configurations"][name], base.about, bound)
    entries = (one["configurations"].get(name) for one in record.entries)
    if entry := next(filter(None, entries), None):
        other_how, other_problems = compare(result, entry, "another machine's entry", rounding)
        return f"{how}, {other_how}", problems + other_problems
    return how, problems


def changes(found: dict[str, Any], entry: dict[str, Any], name: str) -> list[str]:
    """Return the machine properties that differ between two entries and can change a configuration's bits."""
    if name not in entry["configurations"]:
        return ["configurations"]
    relevant = [key for key in found["machine"] if ONLY_FOR.get(key, "") in CONFIGURATIONS[name].words]
    return [key for key in relevant if found["machine"][key] != entry["machine"].get(key)]


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
        pairs = ((name, found["configurations"][name], expected["configurations"][name]) for name in names)
        verdicts = {name: compare(*pair, arguments.against_checkout) for name, *pair in pairs}
    else:
        verdicts = judge(found, record, names)
    counts = Counter[str]()
    for name, (how, problems) in verdicts.items():
        counts[state := state_of(how, problems)] += 1
        print(f"{name}: {how}" + f": {state}" * (state not in how) + "".join(f"; {one}" for one in problems))
    print(f"of {len(names)}: " + ", ".join(f"{number} {state}" for state, number in counts.items()))
    different = counts["DIFFERENT"]
    if not arguments.record:
        return int(bool(different))
    failed = [name for name, one in found["configurations"].items() if "failed" in one]
    if failed:
        print(f"nothing was recorded, because {', '.join(failed)} cannot be run", file=sys.stderr)
        return 1
    for name in [name for name, one in found["configurations"].items() if "skipped" in one]:
        del found["configurations"][name]
    record = record.with_entry(found, bits_changed=bool(different))
    record.write(RECORD)
    print(f"recorded {' '.join(kind_of(found['machine'])[:1])}; the count of bits is {record.bits}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
