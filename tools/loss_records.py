"""References for trained losses: recorded results for this kind of processor, or an earlier commit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Keys that identify a kind of processor, which has one entry in the record. All other keys of a machine are
# library versions.
KIND = ("processor", "instructions", "switches")


@dataclass(frozen=True)
class Record:
    """Results of runs on the known kinds of processors.

    Parameters
    ----------
    bits
        Counter that increases with each commit that changes bits on purpose. Bits are compared only between
        commits with equal counters, and entries are removed when it increases.
    entries
        One entry per kind of processor, with its `machine` and the results of its `configurations`.
    """

    bits: int
    entries: Sequence[dict[str, Any]]

    @staticmethod
    def parse(text: str) -> Record:
        """Read a record. Old files consist of a single entry without a counter."""
        content = json.loads(text)
        return Record(content["bits"], content["entries"]) if "bits" in content else Record(0, [content])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"bits": self.bits, "entries": self.entries}, indent=1) + "\n")

    def with_entry(self, entry: dict[str, Any], bits_changed: bool) -> Record:
        """Return the record with an entry that replaces the entry of the same kind of processor.

        Parameters
        ----------
        entry
            Results of runs on this machine.
        bits_changed
            Whether the code now computes different bits, so that all other entries are outdated.
        """
        if bits_changed:
            return Record(self.bits + 1, [entry])
        kind = kind_of(entry["machine"])
        others = [other for other in self.entries if kind_of(other["machine"]) != kind]
        return Record(self.bits, sorted([*others, entry], key=lambda one: kind_of(one["machine"])))


def kind_of(machine: dict[str, str]) -> tuple[str, ...]:
    """Return the kind of processor of a machine."""
    return tuple(machine.get(key, "") for key in KIND)


def differences(found: dict[str, Any], expected: dict[str, Any], bound: float) -> list[str]:
    """Return the differences between two results of a configuration.

    Parameters
    ----------
    found, expected
        The two results.
    bound
        Maximum tolerated relative difference of two losses; 0 compares all bits, also of metrics and weights.
    """
    problems = []
    if found["edges"] != expected["edges"]:
        problems.append(f"{found['edges']} sampled edges instead of {expected['edges']}")
    losses, others = (
        [float.fromhex(loss) for loss in result["losses"].split()] for result in (found, expected)
    )
    if len(losses) != len(others):
        problems.append(f"{len(losses)} steps instead of {len(others)}")
    pairs = list(zip(losses, others, strict=False))
    # Use `not ... <=`, because a NaN loss always counts as different.
    wrong = [step for step, (a, b) in enumerate(pairs) if not abs(a - b) <= bound * max(abs(a), abs(b))]
    if wrong:
        a, b = pairs[wrong[0]]
        problems.append(
            f"{len(wrong)} of {len(pairs)} losses, first step {wrong[0] + 1} with {a} instead of {b}"
        )
    if not bound:
        problems += [key for key in ("metrics", "weights") if found[key] != expected[key]]
    return problems


def compare(
    result: dict[str, Any], other: dict[str, Any], about: str, bound: float = 0.0
) -> tuple[str, list[str]]:
    """Compare two results of a configuration, the second from `about`.

    Returns
    -------
    How they were compared, and the differences. Without a comparison, the first begins with `skipped` or `not
    compared`.
    """
    if reason := result.get("skipped"):
        return f"skipped: {reason}", []
    if failure := result.get("failed"):
        return "not compared", [failure]
    if reason := other.get("skipped"):
        return f"not compared: with {about}, {reason}", []
    if failure := other.get("failed"):
        # A new configuration may need a setting that the earlier commit does not have.
        return f"not compared: {about} cannot run it ({failure})", [] if other["refused"] else [failure]
    return f"compared {_to(bound)} with {about}", differences(result, other, bound)


def state_of(how: str, problems: Sequence[str]) -> str:
    """Return `DIFFERENT`, `equal`, `skipped` or `not compared`."""
    if problems:
        return "DIFFERENT"
    return "equal" if how.startswith("compared") else how.partition(":")[0]


def _to(bound: float) -> str:
    return f"up to {bound:.0e}" if bound else "bit for bit"


@dataclass(frozen=True)
class Base:
    """Commit to compare with if no entry has the bits of this machine.

    Parameters
    ----------
    commit
        Id of the commit, or None if there is none.
    about
        Description of the commit, or the reason why there is none.
    has_equal_bits
        Whether the commit must compute the same bits as this source tree.
    """

    commit: str | None
    about: str
    has_equal_bits: bool = False


def choose_base(root: Path, record: str, bits: int) -> Base:
    """Return the commit with which a source tree is compared.

    Candidates are the last tag, and the commit where this branch left main, or on main the last commit. The
    result is the first candidate with the source tree's bit counter, or else the first candidate.

    Parameters
    ----------
    root
        Root of the source tree.
    record
        Path of the record in the source tree.
    bits
        Bit counter of the source tree's record.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return Base(None, "git found no commit of this source tree")
    head = git("rev-parse", "HEAD")
    is_changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    mains = (git("rev-parse", "--verify", "--quiet", name) for name in ("origin/main", "main"))
    main = next(filter(None, mains), None)
    fork = git("merge-base", "HEAD", main) if main else head
    tag = git("describe", "--tags", "--abbrev=0")
    candidates = [
        (git("rev-parse", f"{tag}^{{commit}}") if tag else None, f"the last tag, {tag}"),
        (fork if fork != head else None, "where this branch left main"),
        (head if is_changed else git("rev-parse", "--verify", "--quiet", "HEAD~1"), "the last commit"),
    ]
    known = [(commit, about) for commit, about in candidates if commit and (commit != head or is_changed)]
    if not known:
        return Base(None, "this clone has no earlier commit: fetch more of its history")
    for commit, about in known:
        text = git("show", f"{commit}:{record}")
        if text and Record.parse(text).bits == bits:
            return Base(commit, f"{about} ({commit[:8]})", has_equal_bits=True)
    commit, about = known[0]
    return Base(commit, f"{about} ({commit[:8]}), whose record has a different bit count")
