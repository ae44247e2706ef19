"""What trained losses are compared with: a record of this kind of processor, or an earlier commit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A kind of processor, which has one entry in the record; the rest of a machine are versions of libraries.
KIND = ("processor", "instructions", "switches")


@dataclass(frozen=True)
class Record:
    """What runs computed on the kinds of processors that developers have met.

    Parameters
    ----------
    bits
        A count that rises with each commit that changes bits on purpose. Bits are compared only with commits
        that have the same count, and entries are removed when it rises.
    entries
        One for each kind of processor: its `machine`, and its `configurations` with what each computed.
    """

    bits: int
    entries: Sequence[dict[str, Any]]

    @staticmethod
    def parse(text: str) -> Record:
        """Read a record; before entries had kinds, the file was a single entry without a count."""
        content = json.loads(text)
        return Record(content["bits"], content["entries"]) if "bits" in content else Record(0, [content])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"bits": self.bits, "entries": self.entries}, indent=1) + "\n")

    def with_entry(self, entry: dict[str, Any], bits_changed: bool) -> Record:
        """Return a record with an entry instead of the one for its kind of processor.

        Parameters
        ----------
        entry
            What runs computed here.
        bits_changed
            Whether the code computes other bits than before, which makes the entries of all kinds outdated.
        """
        if bits_changed:
            return Record(self.bits + 1, [entry])
        kind = kind_of(entry["machine"])
        others = [other for other in self.entries if kind_of(other["machine"]) != kind]
        return Record(self.bits, sorted([*others, entry], key=lambda one: kind_of(one["machine"])))


def kind_of(machine: dict[str, str]) -> tuple[str, ...]:
    """Return the kind of processor of a machine."""
    return tuple(machine.get(key, "") for key in KIND)


def differences(found: dict[str, Any], wanted: dict[str, Any], bound: float) -> list[str]:
    """Return how two outcomes of a configuration differ.

    Parameters
    ----------
    found, wanted
        What the runs computed.
    bound
        The largest relative difference of two losses that is none; 0 compares all bits, also those of metrics
        and weights.
    """
    problems = []
    if found["edges"] != wanted["edges"]:
        problems.append(f"{found['edges']} sampled edges instead of {wanted['edges']}")
    losses, others = ([float.fromhex(loss) for loss in one["losses"].split()] for one in (found, wanted))
    if len(losses) != len(others):
        problems.append(f"{len(losses)} steps instead of {len(others)}")
    pairs = list(zip(losses, others, strict=False))
    # `not ... <=` because a loss that is not a number always differs.
    wrong = [step for step, (a, b) in enumerate(pairs) if not abs(a - b) <= bound * max(abs(a), abs(b))]
    if wrong:
        a, b = pairs[wrong[0]]
        problems.append(
            f"{len(wrong)} of {len(pairs)} losses, first step {wrong[0] + 1} with {a} instead of {b}"
        )
    if not bound:
        problems += [key for key in ("metrics", "weights") if found[key] != wanted[key]]
    return problems


@dataclass(frozen=True)
class Base:
    """The commit whose code is trained where no entry has the bits of this machine.

    Parameters
    ----------
    commit
        Its id; None if there is none.
    about
        Which commit it is, or why there is none.
    has_equal_bits
        Whether it has to compute the bits of this source tree.
    """

    commit: str | None
    about: str
    has_equal_bits: bool = False


def choose_base(root: Path, record: str, bits: int) -> Base:
    """Choose the commit that a source tree is compared with.

    That is the last tag, the commit where this branch left main, or, on main, the last commit: the first of
    them with the source tree's count of bits, or else the first of them all.

    Parameters
    ----------
    root
        The source tree.
    record
        The record's path in it.
    bits
        The count of its record.
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
        return Base(None, "git knows no commit of this source tree")
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
    return Base(commit, f"{about} ({commit[:8]}), whose record counts other bits")
