"""`hyrt predict`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from end_to_end.terminal import HYRT, environment, hyrt

GPU = "2x-epyc7763-4x-a5000"
WORKLOAD = {
    "vertices": [160_000, 22_000, 1024],
    "edges": [210_000, 24_000],
    "features": [100, 256, 47],
    "concat": True,
    "bytes_per_value": 4,
    "targets_per_epoch": 196_615,
    "batch_per_trainer": 1024,
    "sample_s": 0.003,
}
PLATFORM = {
    "host": {"memory_gb_s": 287, "macs_per_s": 2.16e12, "trains": True},
    "accelerators": [
        {
            "kind": "fpga",
            "memory_gb_s": 61.6,
            "macs_per_s": 5.5e11,
            "link_gb_s": 12,
            "pipelined": True,
            "reads_each_source_once": True,
            "count": 4,
        }
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(WORKLOAD))
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(PLATFORM))
    return tmp_path


def test_two_files_determine_the_papers_form(files: Path) -> None:
    done = hyrt("predict", "--workload", "w.yaml", "--platform", "p.yaml", "--paper", "--json", cwd=files)
    found = json.loads(done.stdout)
    assert found["stages_s"]["transfer"] == pytest.approx(160_000 * 100 * 4 / 12e9)
    assert found["stages_s"]["load"] == pytest.approx(5 * 160_000 * 100 * 4 / 287e9)
    assert found["bottleneck"] == "transfer"
    assert found["iterations"] == 39
    assert found["epoch_s"] == pytest.approx(39 * found["iteration_s"])
    assert found["assignment"]["split"] == {"cpu:0": 1024, **{f"fpga:{i}": 1024 for i in range(4)}}
    assert found["assignment"]["threads"].keys() == {"sample", "load", "train"}
    assert all(memory.keys() == {"need", "have"} for memory in found["memory_bytes"].values())


def test_a_named_dataset_is_not_loaded(tmp_path: Path) -> None:
    done = hyrt("predict", "--data", "ogbn-papers100M", "--model", "gcn", "--platform", GPU, cwd=tmp_path)
    assert "◀ bottleneck" in done.stdout
    assert "sure of this to about ± 30%" in done.stdout
    assert "a5000:0" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_more_accelerators(files: Path) -> None:
    words = ["predict", "--workload", "w.yaml", "--platform", "p.yaml", "--accelerators", "1..16"]
    plot = files / "scaling.png"
    done = hyrt(*words, "--plot", plot, "--json", cwd=files)
    scaling = json.loads(done.stdout)["scaling"]
    assert [row["accelerators"] for row in scaling] == list(range(1, 17))
    assert scaling[-1]["epoch_s"] < scaling[0]["epoch_s"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    table = hyrt(*words, cwd=files).stdout.splitlines()
    assert [line.split()[0] for line in table[-16:]] == [str(count) for count in range(1, 17)]


def test_this_machine_must_have_been_calibrated(tmp_path: Path) -> None:
    done = hyrt("predict", cwd=tmp_path, code=2, XDG_CACHE_HOME=str(tmp_path))
    assert "has not been calibrated: run `hyrt calibrate`, or name a platform: 2x-epyc7763" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--platform", "2x-epyc7763-4x-u280"], "did you mean '2x-epyc7763-4x-u250'"),
        (["--platform", "none.yaml"], "none.yaml: cannot be read"),
        (["--workload", "none.yaml", "--platform", GPU], "none.yaml: cannot be read"),
        (["--workload", "w.yaml", "--data", "ogbn-products", "--platform", GPU], "leave --data"),
        (["--workload", "w.yaml", "model.hidden=3", "--platform", GPU], "leave --data"),
        (["--workload", "p.yaml", "--platform", GPU], "p.yaml: unknown key"),
        (["--accelerators", "9..1", "--platform", GPU], "--accelerators 9..1"),
        (["--accelerators", "x", "--platform", GPU], "--accelerators x"),
        (["--accelerators", "2", "--platform", "amd-epyc-7763"], "has no accelerator"),
        (["--plot", "x.png", "--platform", GPU], "give a range"),
        (["--devices", "cpu", "--platform", GPU], "--devices chooses among this machine's"),
        (["--platform", GPU, "sampler.kind=saint"], "sampler.kind=saint cannot be predicted"),
        (["--platform", GPU, "model.hiden=4"], "did you mean 'model.hidden'"),
        (["--platform", GPU, "--data", "none.npz"], "none.npz"),
    ],
)
def test_wrong_words(files: Path, words: list[str], says: str) -> None:
    done = subprocess.run(
        [str(HYRT), "predict", *words],
        cwd=files,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode not in (0, 1)
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plot_that_cannot_be_written(files: Path) -> None:
    words = ["predict", "--workload", "w.yaml", "--platform", "p.yaml", "--accelerators", "1..2"]
    done = hyrt(*words, "--plot", "nowhere/x.png", cwd=files, code=1)
    assert "nowhere/x.png: cannot be drawn" in done.stderr


def test_neither_torch_nor_numba_is_needed_for_files(files: Path) -> None:
    code = (
        "import sys; sys.argv = ['hyrt', 'predict', '--workload', 'w.yaml', '--platform', 'p.yaml']\n"
        "import hyrt.cli\n"
        "try: hyrt.cli.main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'numba'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=files, check=True, capture_output=True, timeout=60)


def test_a_closed_pipe_is_no_error(files: Path) -> None:
    line = f"{HYRT} predict --workload w.yaml --platform p.yaml | head -1"
    done = subprocess.run(line, shell=True, cwd=files, capture_output=True, text=True, timeout=60)
    assert "stage" in done.stdout
    assert "Traceback" not in done.stderr
