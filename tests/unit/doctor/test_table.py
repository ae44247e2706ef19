from __future__ import annotations

import json

import pytest

from hyrt.doctor.finding import STATES, DoctorFinding, State, exit_code, finding_lines, summary_line
from hyrt.formatting import format_bytes


def finding(state: State, found: str = "as it is", check: str = "cpus") -> DoctorFinding:
    return DoctorFinding(check, state, found, "" if state in ("ok", "note") else "mend it")


@pytest.mark.parametrize("state", ["warning", "broken"])
def test_what_is_wrong_needs_a_remedy(state: State) -> None:
    with pytest.raises(ValueError, match="has no remedy: as it is"):
        DoctorFinding("cpus", state, "as it is")


def test_only_what_is_broken_makes_the_exit_code_1() -> None:
    for state in STATES:
        assert exit_code([finding("ok"), finding(state)]) == (state == "broken")
    assert exit_code([]) == 0


def test_the_state_is_a_word_without_colour() -> None:
    for state in STATES:
        plain = finding_lines(finding(state), 200, coloured=False)
        assert plain[0].startswith(state)
        assert "\x1b" not in "".join(plain)
        coloured = finding_lines(finding(state), 200, coloured=True)
        assert "\x1b[" in coloured[0]
        assert state in coloured[0]
    assert finding_lines(finding("broken"), 200, coloured=False)[1].strip() == "do: mend it"


@pytest.mark.parametrize("width", [60, 80, 121])
def test_lines_are_as_wide_as_the_terminal_at_most(width: int) -> None:
    words = "a path with many words " * 12
    lines = finding_lines(finding("broken", words), width, coloured=False)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(line.split()) for line in lines) == f"broken cpus {words.strip()} do: mend it"
    assert len({len(line) - len(line.lstrip()) for line in lines[1:]}) == 1


def test_an_output_that_is_too_narrow_gets_whole_lines() -> None:
    assert len(finding_lines(finding("ok", "word " * 100), 59, coloured=False)) == 1


def test_the_last_line_counts() -> None:
    findings = [finding("ok"), finding("ok"), finding("warning"), finding("warning"), finding("note")]
    assert summary_line(findings, 4.24) == "2 warnings, 1 note, 2 ok in 4.2 s: a run can start"
    assert summary_line([*findings, finding("broken")], 1).endswith("a run with these settings cannot work")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (64 * 2**20, "64 MiB"),
        (1000 * 2**20, "1,000 MiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_json_has_no_infinity() -> None:
    figures = {"a": float("inf"), "b": [1.5, float("nan")], "c": {"d": -float("inf")}}
    found = DoctorFinding("x", "ok", "y", figures=figures).to_json()
    assert json.loads(json.dumps(found, allow_nan=False))["figures"] == {
        "a": None,
        "b": [1.5, None],
        "c": {"d": None},
    }
