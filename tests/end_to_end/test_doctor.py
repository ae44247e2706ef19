"""`hyrt doctor` on this machine, and on installations that are really broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from end_to_end.terminal import HYRT, environment, installed_hyrt

from hyrt.doctor.finding import STATES


def facts(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    assert found.keys() == {"hyrt", "python", "seconds", "exit_code", "counts", "findings"}
    for finding in found["findings"]:
        assert finding.keys() == {"check", "state", "found", "remedy", "figures"}
        assert finding["state"] in STATES
        assert finding["found"]
        assert bool(finding["remedy"]) == (finding["state"] in ("warning", "broken"))
    states = [finding["state"] for finding in found["findings"]]
    assert found["counts"] == {state: states.count(state) for state in STATES}
    assert found["exit_code"] == int("broken" in states)
    return found


def by_check(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in found["findings"]}


def package(folder: Path, name: str, text: str) -> str:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    return str(folder)


def hanging_backend(folder: Path) -> str:
    """A distribution whose backend hangs while it looks for its devices."""
    info = folder / "hyrt_hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hyrt-hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.devices]\nhanging = hanging_backend:Hanging\n")
    (folder / "hanging_backend.py").write_text(
        "import pathlib, time\n\nclass Hanging:\n    @classmethod\n    def probe(cls):\n"
        f"        pathlib.Path({str(folder / 'asked')!r}).touch()\n        time.sleep(600)\n"
    )
    return str(folder)


def second_gcn(folder: Path) -> str:
    """A distribution that declares the model gcn."""
    info = folder / "acme_gcn-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gcn\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.models]\ngcn = acme_gcn:Gcn\n")
    return str(folder)


def test_a_numba_that_raises_and_a_reader_that_leaves(tmp_path: Path) -> None:
    path = package(tmp_path / "bad", "numba", "raise RuntimeError('boom')")
    done = subprocess.run(
        ["bash", "-c", f"{HYRT} doctor | head -9; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=path, COLUMNS="90"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    # A path is whole, and may be longer than a line.
    assert all(len(line) <= 90 for line in lines if path not in line)
    assert "broken   package numba" in done.stdout
    assert f"{path}/numba/__init__.py: RuntimeError: boom do: pip install" in " ".join(done.stdout.split())


def test_a_numba_that_crashes(tmp_path: Path) -> None:
    path = package(tmp_path, "numba", "import ctypes\nctypes.string_at(0)")
    found = facts(installed_hyrt("doctor", "--json", cwd=tmp_path, code=1, PYTHONPATH=path).stdout)
    checks = by_check(found)
    assert checks["package numba"]["state"] == "broken"
    assert "SIGSEGV" in checks["package numba"]["found"]
    assert checks["backend cpu"]["state"] == "broken"
    assert checks["backend cpu"]["remedy"] == "first follow the line on package numba above"
    assert checks["bandwidth"]["state"] == "warning"


def test_what_no_run_needs_is_only_a_warning(tmp_path: Path) -> None:
    """A sound machine, but for plug-ins that it does without, and files in the place of both cache folders.

    One plug-in hangs, another claims a model of hyrt's.
    """
    file = tmp_path / "file"
    file.touch()
    place = tmp_path / "place"
    place.mkdir()
    done = installed_hyrt(
        "doctor",
        *["--json", "--limit", "5", "--data", "synthetic:tiny", "--devices", "cpu"],
        cwd=place,
        PYTHONPATH=os.pathsep.join([hanging_backend(tmp_path / "plug-in"), second_gcn(tmp_path / "site")]),
        NUMBA_CACHE_DIR=str(file),
        XDG_CACHE_HOME=str(file),
    )
    checks = by_check(facts(done.stdout))
    hanging = checks["backend hanging"]
    assert hanging["state"] == "warning"
    assert hanging["found"].startswith("hyrt-hanging 1.0: hangs: no answer within 5 s, at ")
    assert hanging["found"].endswith("in probe")
    claimed = checks["plug-ins"]
    assert (claimed["state"], claimed["remedy"]) == ("warning", "uninstall acme-gcn 1.0")
    assert checks["kernel cache"]["state"] == "warning"
    assert str(file) in checks["kernel cache"]["found"]
    assert checks["kept rates"]["state"] == "warning"
    # All else is as on any machine.
    for name in ("python", "packages", "run folder", "settings", "data", "device cpu:0"):
        assert checks[name]["state"] == "ok", checks[name]
    assert {"cpus", "memory", "locked memory"} <= checks.keys()
    first, second = checks["device cpu:0"]["figures"]["losses"]
    assert first != second
    assert checks["memory"]["figures"]["need"]["total_bytes"] > 2**28
    bandwidth = checks["bandwidth"]["figures"]
    assert bandwidth["copy_gb_s"] > 0.1
    assert bandwidth["gather_gb_s"] > 0.1
    # Nothing is left where it ran.
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("module", [True, False], ids=["python -m hyrt.doctor", "hyrt doctor"])
def test_a_signal_ends_it_and_its_children(tmp_path: Path, module: bool) -> None:
    """The first also where hyrt's own command line cannot be imported."""
    path = hanging_backend(tmp_path / "plug-in")
    if module:
        package(tmp_path / "plug-in", "typer", "raise ImportError('no typer')")
    start = [sys.executable, "-m", "hyrt.doctor"] if module else [str(HYRT), "doctor"]
    process = subprocess.Popen(
        [*start, "--devices", "hanging"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join([path, *sys.path])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "plug-in" / "asked").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM if module else signal.SIGINT)
    out, errors = process.communicate(timeout=10)
    assert process.returncode == (143 if module else 130)
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    if module:
        # Not what comes after: the packages may not have been asked yet.
        assert out.startswith("ok       python")


def test_wrong_words_are_a_finding_or_an_error(tmp_path: Path) -> None:
    done = installed_hyrt("doctor", "--limit", "0", cwd=tmp_path, code=2)
    assert "--limit" in done.stderr
