"""A third party's backend, installed as its own package, is a peer of the built-in ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.installed_package import EXAMPLES, installed_package
from end_to_end.terminal import TINY, environment, hyrt

PACKAGE = EXAMPLES / "hyrt-plain"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the package, really installed, in a folder of its own."""
    return installed_package("hyrt-plain", tmp_path_factory)


def test_the_package_is_short() -> None:
    files = [path for path in PACKAGE.iterdir() if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150


def test_it_is_listed_with_its_name(installed: dict[str, str], tmp_path: Path) -> None:
    lines = hyrt("devices", cwd=tmp_path, **installed).stdout.splitlines()
    line = next(line for line in lines if line.startswith("plain:0"))
    assert "hyrt-plain 0.1" in line


def test_it_trains_beside_the_cpu(installed: dict[str, str], tmp_path: Path) -> None:
    """The losses are those of the CPU alone: the split changes nothing."""
    words = [*TINY, "model.dropout=0"]  # Which the example has no kernel for.
    hyrt("run", *words, "--name", "alone", cwd=tmp_path)
    hyrt("run", *words, "--devices", "cpu=1,plain=1", "--name", "both", cwd=tmp_path, **installed)
    losses = [
        [
            loss
            for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
            for loss in json.loads(line).get("losses", [])
        ]
        for name in ("alone", "both")
    ]
    assert len(losses[0]) == 10
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    summary = json.loads((tmp_path / "runs/both/summary.json").read_text())
    assert summary["split"] == {"cpu:0": 128, "plain:0": 128}


def test_it_passes_the_public_suite(installed: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hyrt.testing", "plain"],
        cwd=tmp_path,
        env=environment(**installed),
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_claim_to_its_kind_is_a_conflict_that_names_both(
    installed: dict[str, str], tmp_path: Path
) -> None:
    info = tmp_path / "site" / "other_plain-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plain\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[hyrt.devices]\nplain = other_plain:Device\n")
    both = {"PYTHONPATH": os.pathsep.join([str(info.parent), installed["PYTHONPATH"]])}
    done = hyrt("run", *TINY, "--devices", "plain", cwd=tmp_path, code=2, **both)
    assert "hyrt-plain 0.1 and by other-plain 2.0" in done.stderr
    listed = hyrt("devices", cwd=tmp_path, **both).stdout
    assert "uninstall one of them" in " ".join(listed.split())
    assert "cpu:0" in listed


def test_a_plug_ins_simulated_device_is_labelled_in_the_report(tmp_path: Path) -> None:
    info = tmp_path / "site" / "hyrt_pretend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hyrt-pretend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyrt.devices]\npretend = pretend:Pretend\n")
    (info.parent / "pretend.py").write_text(
        "from hyrt.device import DeviceInfo\nfrom hyrt_devices.null import NullDevice\n\n"
        "class Pretend(NullDevice):\n    @classmethod\n    def probe(cls):\n"
        "        what = {'description': 'pretends', 'memory_bytes': 0, 'simulated': True}\n"
        "        return [DeviceInfo(kind='pretend', index=0, **what)]\n"
    )
    words = [*TINY, "--devices", "cpu=1,pretend=1", "--name", "r"]
    hyrt("run", *words, cwd=tmp_path, PYTHONPATH=str(info.parent))
    # Without the plug-in: the records say it.
    hyrt("report", "runs/r", cwd=tmp_path)
    (page,) = (tmp_path / "runs/r").glob("*.html")
    assert '<th scope="row">pretend:0 (simulated)</th>' in page.read_text()
    assert "cpu:0 (simulated)" not in page.read_text()
    first = json.loads((tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()[0])
    assert (first["event"], first["simulated"]) == ("started", ["pretend:0"])


def declared(folder: Path, group: str, kind: str, text: str) -> str:
    """A distribution acme-KIND 1.0 with a module of that text, on its path."""
    info = folder / f"acme_{kind}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{kind}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{kind} = acme_{kind}:Kind\n")
    (folder / f"acme_{kind}.py").write_text(text)
    return str(folder)


CRASH = "import ctypes\nprint('the driver says hello', flush=True)\nctypes.string_at(0)\n"
END = "import os\nprint('the driver says hello', flush=True)\nos._exit(3)\n"


def test_plug_ins_that_end_their_process_are_lines_among_the_others(tmp_path: Path) -> None:
    for kind, text in {"crashing": CRASH, "ending": END}.items():
        site = declared(tmp_path / "site", "hyrt.devices", kind, text)
    # What drivers print does not get into the answer.
    found = json.loads(hyrt("devices", "--json", cwd=tmp_path, PYTHONPATH=site).stdout)
    assert "cpu:0" in [device["name"] for device in found["devices"]]
    problems = {each["kind"]: f"{each['provider']}: {each['problem']}" for each in found["problems"]}
    assert problems["crashing"].startswith("acme-crashing 1.0: broken (crashes with SIGSEGV, at ")
    assert problems["crashing"].endswith("update or uninstall acme-crashing 1.0")
    assert problems["ending"].startswith("acme-ending 1.0: broken (ends its process with exit code 3")
    # auto trains with the others.
    hyrt("run", *TINY, "--devices", "auto", "--name", "r", cwd=tmp_path, PYTHONPATH=site)
    assert (tmp_path / "runs/r/summary.json").exists()


@pytest.mark.parametrize(
    ("group", "words", "noun"),
    [
        ("hyrt.devices", ["--devices", "ending"], "device kind"),
        ("hyrt.samplers", ["sampler.kind=ending"], "sampler.kind"),
        ("hyrt.models", ["--model", "ending"], "model.kind"),
        ("hyrt.objectives", ["train.objective=ending"], "objective"),
    ],
)
def test_a_plug_in_that_ends_the_run_is_named(
    group: str, words: list[str], noun: str, tmp_path: Path
) -> None:
    site = declared(tmp_path / "site", group, "ending", END)
    named = f"hyrt: {noun} 'ending' ended the process while it was being loaded"
    done = hyrt("run", *TINY, *words, cwd=tmp_path, code=3, last_words=named, PYTHONPATH=site)
    assert named in done.stderr
    assert "(acme_ending:Kind from acme-ending 1.0): update or uninstall" in done.stderr


def test_a_backend_that_crashes_in_a_run_is_named_with_its_line(tmp_path: Path) -> None:
    text = (
        "import ctypes\nfrom hyrt.device import DeviceInfo\nfrom hyrt_devices.null import NullDevice\n\n"
        "class Kind(NullDevice):\n    @classmethod\n    def probe(cls):\n"
        "        return [DeviceInfo(kind='crashing', index=0, description='crashes', memory_bytes=0)]\n"
        "    @classmethod\n    def open(cls, info, options):\n        return ctypes.string_at(0)\n"
    )
    site = declared(tmp_path / "site", "hyrt.devices", "crashing", text)
    words = ["--devices", "cpu=1,crashing=1"]
    done = hyrt("run", *TINY, *words, cwd=tmp_path, code=-signal.SIGSEGV, PYTHONPATH=site)
    assert "Segmentation fault" in done.stderr
    assert f'File "{site}/acme_crashing.py", line 11 in open' in done.stderr


@pytest.mark.parametrize(("ending", "code"), [("abort()", -signal.SIGABRT), ("_exit(3)", 3)])
def test_a_backend_that_ends_the_process_inside_propagate_is_named(
    ending: str, code: int, tmp_path: Path
) -> None:
    text = (
        "import os\nfrom hyrt.device import DeviceInfo\nfrom hyrt_devices.null import NullDevice\n\n"
        "class Kind(NullDevice):\n    @classmethod\n    def probe(cls):\n"
        "        return [DeviceInfo(kind='ending', index=0, description='ends', memory_bytes=0)]\n"
        f"    def propagate(self, staged):\n        os.{ending}\n"
    )
    site = declared(tmp_path / "site", "hyrt.devices", "ending", text)
    named = "hyrt: the process ended during propagate of ending:0 at step 0, and unless you"
    words = [*TINY, "--devices", "cpu=1,ending=1"]
    done = hyrt("run", *words, cwd=tmp_path, code=code, last_words=named, PYTHONPATH=site)
    assert named in done.stderr
