"""`hyrt devices` and the words of `--devices`, as a user types them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
import yaml
from end_to_end.terminal import HYRT, TINY, environment, hyrt
from in_process import refused


def test_every_backend_is_listed(tmp_path: Path) -> None:
    lines = hyrt("devices", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)).stdout.splitlines()
    kinds = {line.split()[0].partition(":")[0] for line in lines}
    assert {"cpu", "cuda", "null", "opencl"} <= kinds
    assert "(simulated)" in next(line for line in lines if line.startswith("null"))
    # What is missing comes with what to do.
    cuda = next(line for line in lines if line.startswith("cuda"))
    assert "GFLOP/s" in cuda or "install" in cuda or "driver" in cuda


def test_a_terminal_and_a_pipe_get_lines_that_fit(tmp_path: Path) -> None:
    """A long reason among them, of a plug-in that breaks."""
    info = tmp_path / "site" / "acme_npu-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-npu\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.devices]\nnpu = acme_npu:Npu\n")
    reason = "the driver of this card was not built for the kernel that runs, which is of another year"
    (info.parent / "acme_npu.py").write_text(f"raise OSError({reason!r})\n")
    more = {"COLUMNS": "80", "PYTHONPATH": str(info.parent), "XDG_CACHE_HOME": str(tmp_path)}
    # What an OpenCL device of the host has of its memory is not the same a second later.
    more["OCL_ICD_VENDORS"] = str(tmp_path / "none")
    piped = hyrt("devices", cwd=tmp_path, **more).stdout.splitlines()
    said = " ".join(" ".join(piped).split())
    assert f"OSError: {reason}): update or uninstall acme-npu 1.0 [plug-in acme-npu 1.0]" in said
    assert max(map(len, piped)) <= 80
    parent, child = pty.openpty()
    process = subprocess.Popen([HYRT, "devices"], cwd=tmp_path, env=environment(**more), stdout=child)
    os.close(child)
    text = b""
    with contextlib.suppress(OSError):  # The end of a pseudo-terminal.
        while data := os.read(parent, 4096):
            text += data
    os.close(parent)
    assert process.wait(60) == 0
    # Where colorama is installed, numba has it reset colours as the process ends.
    shown = text.decode().removesuffix("\x1b[0m").splitlines()
    assert shown == piped


def test_json_has_the_documented_keys(tmp_path: Path) -> None:
    facts = json.loads(hyrt("devices", "--json", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)).stdout)
    assert facts.keys() == {"hyrt", "devices", "problems"}
    cpu = next(device for device in facts["devices"] if device["name"] == "cpu:0")
    assert cpu.keys() == {
        "name",
        "kind",
        "index",
        "provider",
        "description",
        "memory_bytes",
        "zero_copy",
        "host_cores",
        "link",
        "simulated",
        "rates",
    }
    for problem in facts["problems"]:
        assert problem.keys() == {"kind", "provider", "problem"}


def test_measured_rates_are_kept_and_shown_on_this_machine_only(tmp_path: Path) -> None:
    # Kernels of OpenCL devices are not compiled for it: tests/unit/predict measures one.
    alone = {"OCL_ICD_VENDORS": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path)}
    first = hyrt("devices", "--measure", cwd=tmp_path, **alone)
    assert "measuring cpu:0" in first.stderr
    facts = json.loads(hyrt("devices", "--json", cwd=tmp_path, **alone).stdout)
    cpu = next(device for device in facts["devices"] if device["name"] == "cpu:0")
    assert cpu["rates"]["source"].startswith("measured 20")
    assert cpu["rates"]["link_bytes_per_s"] is None
    # Nor are they used on another machine, which is said.
    (file,) = (tmp_path / "hyrt").glob("calibration-*.yaml")
    kept = yaml.safe_load(file.read_text())
    kept["machine"]["node"] = "elsewhere"
    file.write_text(yaml.safe_dump(kept))
    said = " ".join(hyrt("devices", cwd=tmp_path, **alone).stdout.split())
    assert "rates unknown (measurement made on another machine (elsewhere)) cuda " in said


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{HYRT} devices | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("cpu:1000", r"cpu:1000 is not available "),
        ("opencI:0", "did you mean 'opencl'"),
        ("cpu=1,null:0", "set a share for all or none"),
        ("auto,cpu", "use auto alone"),
        ("cpu,cpu:0", "devices lists cpu:0 twice"),
    ],
)
def test_a_device_that_is_not_there_is_an_error(tmp_path: Path, devices: str, message: str) -> None:
    assert message in refused("run", *TINY, "--devices", devices, cwd=tmp_path)
    assert not list(tmp_path.glob("runs/*"))


def test_shares_split_a_step(tmp_path: Path) -> None:
    done = hyrt("run", *TINY, "--devices", "cpu:0=1,cpu:1=3", cwd=tmp_path)
    assert "cpu:0 64 targets · cpu:1 192 targets" in done.stdout


def test_auto_records_what_it_chose_and_resumes_with_it(tmp_path: Path) -> None:
    hyrt("run", *TINY, "--devices", "auto", "--name", "r", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    devices = yaml.safe_load((tmp_path / "runs/r/config.yaml").read_text())["devices"]
    assert devices[0].startswith("cpu:0")
    assert json.loads((tmp_path / "runs/r/summary.json").read_text())["devices"] == devices
    hyrt("run", "--resume", "runs/r", "train.epochs=3", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
