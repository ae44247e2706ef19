"""The Makefile that builds with Vitis: the lines it would run, and what it says without it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import hyrt_hls
import pytest

HOME = Path(hyrt_hls.__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a folder"
    path.mkdir()
    shutil.copy(HOME / "Makefile", path)
    shutil.copytree(HOME / "configs", path / "configs")
    (path / "kernels").mkdir()
    (path / "kernels" / "trainer.cpp").touch()
    return path


def make(folder: Path, *words: str, tools: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.environ["PATH"] if tools is None else f"{tools}:{os.environ['PATH']}"
    return subprocess.run(
        ["make", "-C", str(folder), "--no-print-directory", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def lines(folder: Path, *words: str) -> list[list[str]]:
    """What `make -n` would run, but for what only looks or makes folders."""
    done = make(folder, "-n", *words)
    assert done.returncode == 0, done.stderr
    found = [shlex.split(line) for line in done.stdout.splitlines()]
    # What tells the design comes first: it is there before the reports are.
    assert next(line[0] for line in found if line[0] in ("v++", "printf")) == "printf"
    return [line for line in found if line[0] in ("v++", "emconfigutil")]


def value(line: list[str], option: str) -> str:
    return line[line.index(option) + 1]


@pytest.mark.parametrize("target", ["hw", "hw_emu"])
def test_lines(folder: Path, target: str) -> None:
    compile_, link, package, *rest = lines(folder, f"TARGET={target}")
    assert [line[1] for line in (compile_, link, package)] == ["-c", "-l", "-p"]
    for line in (compile_, link, package):
        assert (value(line, "-t"), value(line, "--platform")) == (
            target,
            "xilinx_u250_gen3x16_xdma_4_1_202210_1",
        )
    assert value(compile_, "-k") == "hyrt_train"
    assert compile_[-1] == "kernels/trainer.cpp"
    assert {word for word in compile_ if word.startswith("-D")} == {
        "-DHYRT_PES=8",
        "-DHYRT_MAC_ROWS=32",
        "-DHYRT_MAC_COLS=64",
        "-DHYRT_ARENA_WORDS=32768",
        "-DHYRT_FIFO_DEPTH=32",
        "-DHYRT_ADDER_LATENCY=7",
    }
    assert value(link, "--config") == "configs/u250.cfg"
    # Each takes what the one before it made.
    assert link[-1] == value(compile_, "-o")
    assert package[-1] == value(link, "-o")
    assert [line[0] for line in rest] == (["emconfigutil"] if target == "hw_emu" else [])
    for line in rest:
        assert value(line, "--platform") == value(link, "--platform")
        assert value(line, "--od") == str(Path(value(package, "-o")).parent)


def test_what_is_asked_for(folder: Path) -> None:
    words = ["PLATFORM=/opt/p/own.xpfm", "PES=4", "MAC_ROWS=8", "CONFIG=configs/u50.cfg", "FREQUENCY_MHZ=250"]
    compile_, link, _ = lines(folder, *words)
    assert value(compile_, "--platform") == "/opt/p/own.xpfm"
    assert value(compile_, "--kernel_frequency") == value(link, "--kernel_frequency") == "250"
    assert {"-DHYRT_PES=4", "-DHYRT_MAC_ROWS=8"} <= set(compile_)
    assert value(link, "--config") == "configs/u50.cfg"


def test_each_design_is_built_elsewhere(folder: Path) -> None:
    changes = [
        "PES=4",
        "MAC_ROWS=8",
        "MAC_COLS=16",
        "ARENA_WORDS=1",
        "FIFO_DEPTH=2",
        "ADDER_LATENCY=9",
        "TARGET=hw_emu",
        "FREQUENCY_MHZ=1",
    ]
    changes += ["CONFIG=configs/u50.cfg", "PLATFORM=other"]
    outputs = [value(lines(folder, change)[0], "-o") for change in ["PES=8", *changes]]
    assert len(set(outputs)) == len(outputs)
    assert all(output.startswith("build/") for output in outputs)


def test_design_mk_stands_for_what_is_not_given(folder: Path) -> None:
    (folder / "design.mk").write_text("PES ?= 2\nMAC_ROWS ?= 4\n")
    compile_ = lines(folder, "MAC_ROWS=16")[0]
    assert {"-DHYRT_PES=2", "-DHYRT_MAC_ROWS=16"} <= set(compile_)


def test_without_vitis(folder: Path) -> None:
    done = make(folder, "VPP=v++-that-is-not-there")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "v++-that-is-not-there is not on the path: install Vitis and source its settings64.sh"
    )
    assert not (folder / "build").exists()


def test_other_targets_are_refused(folder: Path) -> None:
    done = make(folder, "-n", "TARGET=sw_emu")
    assert done.returncode != 0
    assert "TARGET is sw_emu: give hw or hw_emu" in done.stderr


def test_a_build(folder: Path) -> None:
    """With tools that only write what they are told to, every file is where the next step looks for it."""
    tools = folder / "tools"
    tools.mkdir()
    for name, body in {
        "v++": 'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo made > "$2"; fi; shift; done',
        "emconfigutil": 'echo "{}" > "$4/emconfig.json"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    done = make(folder, "TARGET=hw_emu", "PES=4", tools=tools)
    assert done.returncode == 0, done.stderr
    (told,) = re.findall(r"^HYRT_XCLBIN=.*$", done.stdout, re.M)
    # As a shell reads it: the folder's name has a blank.
    setting, *command = shlex.split(told)
    assert command == ["hyrt", "run", "--devices", "cpu,fpga"]
    xclbin = Path(setting.partition("=")[2])
    assert xclbin.read_text() == "made\n"
    assert json.loads(xclbin.with_suffix(".json").read_text()) == {
        "pes": 4,
        "mac_rows": 32,
        "mac_cols": 64,
        "arena_words": 32768,
        "fifo_depth": 32,
        "adder_latency": 7,
        "clock_mhz": 300,
    }
    assert (xclbin.parent / "emconfig.json").exists()
    again = make(folder, "TARGET=hw_emu", "PES=4", tools=tools)
    assert "-c -t" not in again.stdout
    (folder / "kernels" / "trainer.cpp").write_text("changed")
    os.utime(folder / "kernels" / "trainer.cpp", (xclbin.stat().st_mtime + 5,) * 2)
    assert "-c -t" in make(folder, "TARGET=hw_emu", "PES=4", tools=tools).stdout
