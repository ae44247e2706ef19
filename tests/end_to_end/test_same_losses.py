"""What is trained has the bits that it had before: the short form of `python tools/same_losses.py`.

They are those of the record if it has an entry for a machine like this one, and else those of an earlier
commit, which is trained here, too. A source tree without git is compared with the record up to rounding.

A third of the configurations stands for the rest, which takes minutes: a resume, several devices, sparse,
quantized, cached and heterogeneous features, subgraphs, links, custom layers, tiles and ranks.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import same_losses
from loss_records import Base, Record, choose_base, compare, differences, kind_of, state_of
from same_losses import CONFIGURATIONS, RECORD, ROOT, judge, measure

CHOSEN = [
    *("gin-resumed", "gat-two-cpus", "graphsage-sparse", "gcn-saint", "graphsage-opencl"),
    *("gcn-quantized-cached", "rgcn-hetero", "gcn-links", "user-gatv2-tiles-opencl"),
    *("gcn-tiles-two-cpus-resumed", "graphsage-tiles-torch", "gcn-p3"),
]
OUTCOME = {
    "edges": 90,
    "losses": " ".join((1 / step).hex() for step in range(1, 13)),
    "metrics": {"val": {"loss": 0.5}},
    "weights": "6228f7ac",
}
MACHINE = {"processor": "znver3", "instructions": "avx2", "switches": "", "torch": "2", "opencl": "PoCL"}


@pytest.fixture(scope="module")
def record() -> Record:
    return Record.parse(RECORD.read_text())


@pytest.fixture(scope="module")
def verdicts(record: Record) -> dict[str, tuple[str, list[str]]]:
    return judge(measure(ROOT, CHOSEN), record, CHOSEN)


# The first of them trains all, and in a new checkout waits for kernels to be compiled: twice, if it also
# trains the code of an earlier commit.
@pytest.mark.limit(900)
@pytest.mark.parametrize("name", CHOSEN)
def test_the_bits_are_those_of_before(verdicts: dict[str, tuple[str, list[str]]], name: str) -> None:
    how, problems = verdicts[name]
    if state_of(how, problems) in ("skipped", "not compared"):
        pytest.skip(how)
    assert not problems, how


def test_a_record_has_each_kind_of_processor_once(record: Record) -> None:
    kinds = [kind_of(entry["machine"]) for entry in record.entries]
    assert len(kinds) == len(set(kinds))
    # Entries may be older than a configuration; its values then come from an earlier commit.
    for entry in record.entries:
        assert set(entry["configurations"]) <= set(CONFIGURATIONS)
        assert all("losses" in outcome for outcome in entry["configurations"].values())


def entry_of(outcome: dict[str, Any] = OUTCOME, **machine: str) -> dict[str, Any]:
    return {
        "machine": MACHINE | machine,
        "configurations": {name: copy.deepcopy(outcome) for name in CONFIGURATIONS},
    }


def changed(factor: float, step: int = 7) -> dict[str, Any]:
    """An outcome in which the loss of a step is multiplied."""
    losses = OUTCOME["losses"].split()
    losses[step] = (float.fromhex(losses[step]) * factor).hex()
    return OUTCOME | {"losses": " ".join(losses)}


@pytest.mark.parametrize(
    ("factor", "bound", "is_equal"),
    [
        (1.0, 0.0, True),
        (1 + 2**-52, 0.0, False),
        (1 + 2**-22, 1e-5, True),
        (1 + 1e-4, 1e-5, False),
        (float("nan"), 1e-5, False),
    ],
)
def test_losses_that_differ_are_found(factor: float, bound: float, is_equal: bool) -> None:
    problems = differences(changed(factor), OUTCOME, bound)
    assert (not problems) == is_equal
    assert is_equal or "first step 8" in problems[0]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("edges", 1, "1 sampled edges instead of 90"),
        ("losses", "0x1p+0", "1 steps instead of 12"),
        ("weights", "", "weights"),
        ("metrics", {}, "metrics"),
    ],
)
def test_other_differences_are_found(key: str, value: Any, problem: str) -> None:
    assert problem in differences(OUTCOME | {key: value}, OUTCOME, 0.0)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """An earlier commit with the same count of bits; what it is to compute goes into the list."""
    outcomes: list[dict[str, Any]] = []
    base = Base("HEAD", "the last commit", has_equal_bits=True)
    monkeypatch.setattr(same_losses, "choose_base", lambda *_: base)
    monkeypatch.setattr(same_losses, "measure", lambda *_: outcomes[0])
    return outcomes


def test_an_unknown_processor_is_compared_bit_for_bit_with_an_earlier_commit(
    trained: list[dict[str, Any]],
) -> None:
    record = Record(1, [entry_of(processor="another")])
    found = entry_of(changed(1 + 2**-22))
    trained.append(found)
    how, problems = judge(found, record, ["gcn-saint"])["gcn-saint"]
    assert not problems
    assert "bit for bit with the last commit" in how
    trained[0] = entry_of()
    assert "first step 8" in judge(found, record, ["gcn-saint"])["gcn-saint"][1][0]
    trained[0] = entry_of({"failed": "error: no memory", "refused": False})
    assert judge(found, record, ["gcn-saint"])["gcn-saint"][1] == ["error: no memory"]
    trained[0] = entry_of({"failed": "error: no setting model.hidden", "refused": True})
    how, problems = judge(found, record, ["gcn-saint"])["gcn-saint"]
    assert not problems
    assert "cannot run it (error: no setting model.hidden)" in how
    trained[0] = found = entry_of(changed(1 + 1e-4))
    assert judge(found, record, ["gcn-saint"])["gcn-saint"][1], "another machine's entry differs by more"


@pytest.mark.parametrize(
    ("result", "other", "state"),
    [
        (OUTCOME, OUTCOME, "equal"),
        (OUTCOME, changed(1 + 2**-52), "DIFFERENT"),
        ({"skipped": "no opencl device"}, OUTCOME, "skipped"),
        ({"skipped": "no opencl device"}, {"skipped": "no opencl device"}, "skipped"),
        ({"failed": "error: no memory", "refused": True}, {"failed": "", "refused": True}, "DIFFERENT"),
        (OUTCOME, {"skipped": "no opencl device"}, "not compared"),
        (OUTCOME, {"failed": "error: no setting data.cache", "refused": True}, "not compared"),
        (OUTCOME, {"failed": "error: no memory", "refused": False}, "DIFFERENT"),
    ],
)
def test_only_results_that_were_compared_are_equal(
    result: dict[str, Any], other: dict[str, Any], state: str
) -> None:
    assert state_of(*compare(result, other, "HEAD~3")) == state


def test_a_configuration_that_an_entry_lacks_is_trained_with_an_earlier_commit(
    trained: list[dict[str, Any]],
) -> None:
    entry = entry_of()
    del entry["configurations"]["gcn-p3"]
    trained.append(entry_of(changed(1 + 2**-52)))
    verdicts = judge(entry_of(), Record(1, [entry]), ["gcn-saint", "gcn-p3"])
    assert verdicts["gcn-saint"] == ("compared bit for bit with this processor's entry", [])
    assert "the last commit" in verdicts["gcn-p3"][0]
    assert "first step 8" in verdicts["gcn-p3"][1][0]


def test_a_configuration_whose_device_is_missing_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    devices = json.dumps({"devices": [{"kind": "cpu"}]})

    def run(words: str, folder: Path, ranks: int = 1) -> int:
        started.append(folder.name)
        (folder / "output.txt").write_text(devices)
        return 0

    monkeypatch.setattr(same_losses, "_hyrt", run)
    monkeypatch.setattr(same_losses, "prepare", lambda folder: None)
    same_losses.train(tmp_path, ["gat-two-cpus", "gcn-cpu-opencl"])
    assert started == [tmp_path.name, "gat-two-cpus"]
    assert same_losses.outcome(tmp_path / "gcn-cpu-opencl") == {
        "skipped": "this machine has no opencl device"
    }


def test_an_entry_is_used_where_what_a_configuration_needs_is_equal(trained: list[dict[str, Any]]) -> None:
    record = Record(1, [entry_of(torch="1"), entry_of(opencl="another")])
    trained.append(entry_of(changed(1 + 2**-52)))
    verdicts = judge(entry_of(changed(1 + 2**-52)), record, ["gcn-saint", "gcn-cpu-opencl"])
    assert "first step 8" in verdicts["gcn-saint"][1][0]
    assert not verdicts["gcn-cpu-opencl"][1]


def test_a_run_that_fails_differs(trained: list[dict[str, Any]]) -> None:
    found = entry_of({"failed": "error: no memory", "refused": False})
    for record in (Record(1, []), Record(1, [entry_of()])):
        assert judge(found, record, ["gcn-saint"])["gcn-saint"][1] == ["error: no memory"]


def test_an_entry_replaces_that_of_its_kind_and_new_bits_replace_all() -> None:
    record = Record(4, [entry_of(), entry_of(processor="another")])
    newer = entry_of(changed(2.0), torch="3")
    same = record.with_entry(newer, bits_changed=False)
    assert same.bits == 4
    assert sorted(entry["machine"]["processor"] for entry in same.entries) == ["another", "znver3"]
    assert newer in same.entries
    assert record.with_entry(newer, bits_changed=True) == Record(5, [newer])
    assert Record.parse(json.dumps({"machine": {}, "configurations": {}})).bits == 0


def test_the_base_is_the_nearest_of_tag_fork_and_last_commit_with_equal_bits(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path), *words]
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        ).stdout.strip()

    def commit(bits: int) -> str:
        Record(bits, []).write(tmp_path / "record.json")
        git("add", "record.json")
        git("commit", "--allow-empty", "--message", "a")
        return git("rev-parse", "HEAD")

    def base(bits: int) -> Base:
        return choose_base(tmp_path, "record.json", bits)

    assert "git found no commit" in base(1).about
    git("init", "--initial-branch", "main")
    first = commit(1)
    assert base(1).commit is None
    assert "fetch more" in base(1).about
    second = commit(1)
    assert base(1) == Base(first, f"the last commit ({first[:8]})", True)
    assert base(2).commit == first
    assert not base(2).has_equal_bits
    (tmp_path / "record.json").write_text("{}")
    assert base(1).commit == second, "changes that are not in a commit yet"
    git("checkout", "record.json")
    git("tag", "v1")
    assert base(1).commit == first, "the tag is this very commit"
    third = commit(1)
    assert base(1) == Base(second, f"the last tag, v1 ({second[:8]})", True)
    git("checkout", "-b", "topic")
    fourth = commit(2)
    commit(2)
    assert base(1).commit == second
    assert base(2) == Base(fourth, f"the last commit ({fourth[:8]})", True)
    git("tag", "--delete", "v1")
    assert base(1) == Base(third, f"where this branch left main ({third[:8]})", True)
    clone = tmp_path / "clone"
    git("clone", "--depth", "1", f"file://{tmp_path}", str(clone))
    assert choose_base(clone, "record.json", 1).commit is None
