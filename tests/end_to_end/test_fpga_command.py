"""`hyrt fpga`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from end_to_end.terminal import HYRT, environment, hyrt
from in_process import refused
from unit.graph.graph_datasets import make_arrays

WORKLOAD = {
    "vertices": [160_000, 22_000, 1024],
    "edges": [210_000, 24_000],
    "features": [100, 256, 47],
    "concat": True,
    "targets_per_epoch": 196_615,
    "batch_per_trainer": 1024,
}
REPORT = """<profile>
<UserAssignments><Part>xcu250-figd2104-2L-e</Part><TopModelName>NAME</TopModelName>
<TargetClockPeriod>4.00</TargetClockPeriod></UserAssignments>
<PerformanceEstimates>
<SummaryOfTimingAnalysis><EstimatedClockPeriod>3.1</EstimatedClockPeriod></SummaryOfTimingAnalysis>
<SummaryOfLoopLatency><L><PipelineII>2</PipelineII></L></SummaryOfLoopLatency>
</PerformanceEstimates>
<AreaEstimates><Resources><BRAM_18K>1</BRAM_18K><DSP>12250</DSP><LUT>1500000</LUT></Resources></AreaEstimates>
</profile>"""
BUILT = {"pes": 8, "mac_rows": 32, "mac_cols": 64, "arena_words": 32768, "fifo_depth": 32, "adder_latency": 7}
BUILT["clock_mhz"] = 300


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(WORKLOAD))
    (tmp_path / "reports").mkdir()
    for name in ("systolic_8", "hyrt_train"):
        (tmp_path / "reports" / f"{name}_csynth.xml").write_text(REPORT.replace("NAME", name))
    (tmp_path / "hyrt_train.json").write_text(json.dumps(BUILT))
    return tmp_path


def test_a_front_on_the_papers_card(tmp_path: Path) -> None:
    words = ["--part", "u250", "--model", "graphsage", "--data", "ogbn-products"]
    done = hyrt("fpga", "explore", *words, "--fanout", "25,10", "--hidden", "256", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("u250 · 1,024 targets · ")
    assert lines[0].endswith("widths 100, 256, 47")
    assert sum("Table IV" in line for line in lines) >= 1
    assert any(
        line.startswith("assumed until confirmed by a build or a board: adder_latency") for line in lines
    )
    assert any("HP-GNN" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_json_of_a_file(files: Path) -> None:
    done = hyrt("fpga", "explore", "--workload", "w.yaml", "--json", cwd=files)
    found = json.loads(done.stdout)
    assert (found["part"], found["targets"], found["features"]) == ("u250", 1024, [100, 256, 47])
    costs = [each["cost"] for each in found["front"]]
    times = [each["step_s"] for each in found["front"]]
    assert costs == sorted(costs)
    assert times == sorted(times, reverse=True)
    assert max(costs) <= 1
    for each in found["front"]:
        assert each["cost"] == max(each["utilisation"].values())
    paper = found["table_iv"]
    assert (paper["pes"], paper["mac_rows"] * paper["mac_cols"]) == (8, 2048)
    assert paper["utilisation"]["dsp"] == pytest.approx(0.906, abs=1e-3)
    assert {"clock_hz", "ddr_efficiency", "update_ii"} <= found["assumed"].keys()
    cycles = paper["task_cycles"]
    phases = [
        sum(layer[name] for name in ("aggregate", "update", "backward", "weight_gradient"))
        for layer in cycles["layers"]
    ]
    assert sum(phases) + cycles["loss"] == pytest.approx(cycles["total"])
    hidden = sum(min(layer["aggregate"], layer["update"]) for layer in cycles["layers"])
    assert cycles["total"] - hidden == pytest.approx(cycles["total_if_overlapped"])
    # 300 MHz, and 0.1 ms for starting each task.
    assert paper["step_s"] == pytest.approx(paper["tasks"] * (cycles["total"] / 3e8 + 1e-4))


def test_sparse_features_are_explored_as_the_rows_that_the_card_gets(tmp_path: Path) -> None:
    arrays = make_arrays(3, vertices=60, width=33, sparse=True)
    np.savez(tmp_path / "sparse.npz", **arrays)
    done = hyrt(
        "fpga",
        "explore",
        "--data",
        "sparse.npz",
        "--model",
        "gcn",
        "--fanout",
        "4,3",
        "--hidden",
        "16",
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    assert "widths 33, 16, " in lines[0]
    assert (
        "assumed: sparse.npz has sparse features: the model assumes that the card receives "
        "dense rows of 33 float32 values" in lines
    )


def test_reports_take_the_place_of_what_is_assumed(files: Path) -> None:
    words = ["fpga", "explore", "--workload", "w.yaml"]
    before = json.loads(hyrt(*words, "--json", cwd=files).stdout)
    after = json.loads(hyrt(*words, "--reports", "reports", "--json", cwd=files).stdout)
    assert before["assumed"].keys() - after["assumed"].keys() == {"clock_hz", "update_ii"}
    assert after["table_iv"]["step_s"] > 1.2 * before["table_iv"]["step_s"]
    build = after["build"]
    assert build["predicted"] == after["table_iv"]
    reported = {each["what"]: (each["reported"], each["ratio"]) for each in build["compared"]}
    assert reported["DSP"] == (12_250, pytest.approx(12_250 / 11_136))
    assert reported["clock, MHz"] == (pytest.approx(250), pytest.approx(250 / 300))
    assert reported["interval of systolic, cycles"] == (2, 2)


def test_predict_takes_what_a_build_told(files: Path) -> None:
    """The line that explore prints, pasted into a platform's file."""
    words = ["fpga", "explore", "--workload", "w.yaml", "--reports", "reports"]
    lines = hyrt(*words, cwd=files).stdout.splitlines()
    assert any(line.split()[:4] == ["DSP", "11,136", "12,250", "1.10"] for line in lines)
    (at,) = (at for at, line in enumerate(lines) if line.startswith("for hyrt predict"))
    told = yaml.safe_load("\n".join(lines[at + 1 : at + 3]))
    assert (told["design"]["clock_hz"], told["design"]["update_ii"]) == (250e6, 2)
    accelerator = {"kind": "u250", "memory_gb_s": 60, "macs_per_s": 5e11, "link_gb_s": 12}
    host = {"memory_gb_s": 150, "macs_per_s": 2e12, "cores": 64, "trains": False}
    taken = {}
    plain = {name: told["design"][name] for name in ("pes", "mac_rows", "mac_cols", "ddr_gb_s")}
    for name, design in (("assumed", plain), ("told", told["design"])):
        platform = {
            "host": host,
            "accelerators": [{**accelerator, "design": design, "arena_words": told["arena_words"]}],
        }
        (files / "p.yaml").write_text(yaml.safe_dump(platform))
        found = hyrt("predict", "--workload", "w.yaml", "--platform", "p.yaml", "--json", cwd=files).stdout
        taken[name] = json.loads(found)
    (said,) = taken["told"]["assumptions"]
    assert said.endswith(
        "no build has confirmed adder_latency, ddr_efficiency, edge_ii, launch_s, network_ii"
    )
    predicted = {name: each["stages_s"]["propagate"] for name, each in taken.items()}
    explored = json.loads(hyrt(*words, "--json", cwd=files).stdout)["build"]["predicted"]
    assert predicted["told"] == pytest.approx(explored["step_s"], rel=0.01)
    assert predicted["told"] > 1.2 * predicted["assumed"]


def test_reports_of_something_else_are_refused(files: Path) -> None:
    words = ["fpga", "explore", "--workload", "w.yaml", "--reports", "reports"]

    def error(*more: str) -> str:
        done = subprocess.run(
            [str(HYRT), *words, *more],
            cwd=files,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode not in (0, 1)
        return done.stderr

    assert (
        "was compiled for xcu250-figd2104-2L-e, but u200 is xcu200-fsgd2104-2-e: specify --part u250"
        in error("--part", "u200")
    )
    assert "has fifo_depth 32, not 16: remove" in error("--fifo-depth", "16")
    (files / "hyrt_train.json").unlink()
    assert "no hyrt_train.json in its folder or above" in error()


def test_a_smaller_card_has_no_room_for_the_papers_design(files: Path) -> None:
    done = hyrt("fpga", "explore", "--part", "u50", "--workload", "w.yaml", cwd=files)
    assert (
        "Table IV's design (n = 8, m = 2048): the design does not fit u50, because it needs dsp 11,136 of "
        "5,952" in done.stdout
    )


def test_neither_torch_nor_numba_is_needed(files: Path) -> None:
    code = (
        "import sys; sys.argv = ['hyrt', 'fpga', 'explore', '--workload', 'w.yaml']\n"
        "import hyrt.cli.commands\n"
        "assert 'numpy' not in sys.modules\n"
        "try: hyrt.cli.commands.main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'numba', 'hyrt_devices'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=files, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explore", "--part", "u25"], "unknown part 'u25': choose one of u250, u200, u280, u50"),
        (["explore", "--part", "mine.yaml"], "mine.yaml cannot be read"),
        (["explore", "--model", "gat"], "the FPGA trainer cannot run layer 'layers.0' (GatLayer"),
        (["explore", "model.aggregate=max"], "the FPGA trainer cannot run layer 'layers.0' (SageLayer"),
        (["explore", "--model", "sage"], "model.kind"),
        (["explore", "--fanout", "x"], "sampler.fanout"),
        (["explore", "--workload", "w.yaml", "--model", "gcn"], "remove --model"),
        (["explore", "--workload", "none.yaml"], "none.yaml cannot be read"),
        (["explore", "--workload", "w.yaml", "--reports", "none"], "none cannot be read"),
        (
            ["explore", "--workload", "w.yaml", "--fifo-depth", "0"],
            "fifo_depth must be an integer of at least 1, got 0",
        ),
        (["explore", "--workload", "wide.yaml"], "no trainer fits u250: layer 1 maps rows of"),
        (["build-files", "out", "--macs", "2048"], "--macs 2048 must be rows and columns"),
        (["build-files", "out", "--macs", "64x64"], "dsp 21,376 of 12,288"),
        (["build-files", "out", "--arena-words", "10"], "arena: one target needs 32 words of sums"),
        (["build-files", ".", "--pes", "8"], "not empty"),
    ],
)
def test_wrong_words(files: Path, words: list[str], says: str) -> None:
    (files / "wide.yaml").write_text(yaml.safe_dump({**WORKLOAD, "features": [9000, 256, 47]}))
    assert says in refused("fpga", *words, cwd=files)


def test_designs_with_streams_that_tools_may_refuse_are_marked(files: Path) -> None:
    """On a part so large that more than eight units pay."""
    part = {
        "device": "x", "platform": "x", "source": "none", "dsp": 100_000, "lut": 20_000_000, "ff": 40_000_000,
        "bram36": 20_000, "uram": 10_000, "slr_dsp": [100_000],
        "memory": {"kind": "HBM", "banks": 1, "peak_gb_s": 2000},
        "trainer": {"pes": 8, "mac_rows": 32, "mac_cols": 64, "arena_words": 32768},
    }  # fmt: skip
    (files / "large.yaml").write_text(yaml.safe_dump(part))
    words = ["fpga", "explore", "--part", "large.yaml", "--workload", "w.yaml"]
    lines = hyrt(*words, cwd=files).stdout.splitlines()
    front = json.loads(hyrt(*words, "--json", cwd=files).stdout)["front"]
    wide = [each["pes"] > 8 or max(each["mac_rows"], each["mac_cols"]) > 128 for each in front]
    assert any(wide)
    assert not all(wide)
    assert [line.endswith("  !") for line in lines[2 : 2 + len(front)]] == wide
    assert [each["widest_stream_bits"] > 4096 for each in front] == wide
    assert any(line.startswith("! a stream is wider than 4,096 bits (512 n") for line in lines)


def test_files_to_build_with(tmp_path: Path) -> None:
    done = hyrt("fpga", "build-files", "out", "--part", "u200", "--units", "1", cwd=tmp_path)
    assert "u200: DSP 88.0%, LUT " in done.stdout
    assert "make -C out TARGET=hw_emu" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "out" / "kernels" / "trainer.cpp").exists()
    done = hyrt(
        "fpga",
        "build-files",
        "two words",
        "--pes",
        "16",
        "--macs",
        "16x16",
        "--clock-mhz",
        "400",
        cwd=tmp_path,
    )
    assert "wrote 'two words'; with Vitis, run make -C 'two words' TARGET=hw_emu" in done.stdout
    clock, streams = done.stderr.splitlines()
    assert clock == (
        "warning: the design has a clock of 400 MHz, but the platform of u250 only 300 MHz, so v++ may not "
        "achieve timing closure: lower the clock of the design"
    )
    assert streams.startswith("warning: streams have ")
    assert (tmp_path / "out" / "configs" / "u200.cfg").read_text().count("sp=hyrt_train_1.") == 10
