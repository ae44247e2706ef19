"""What stopped new users at the command line: reports in lines, a schema to begin with, plain words."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import refused, run_here

from hyrt.cli import commands
from hyrt.config.commented_yaml import read_schema
from hyrt.errors import DataError
from hyrt.report.progress import _can_redraw


def test_a_report_has_lines_and_any_other_error_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    report, name = (
        DataError("1 row is wrong\n  a\x07.csv, line 3\nCorrect it"),
        DataError("a\nb: not a graph"),
    )
    report.is_multiline = True
    for error in (report, name):
        with pytest.raises(SystemExit):
            commands._end(error, str(error), 2)
    shown = capsys.readouterr().err
    assert shown == "error: 1 row is wrong\n  a\\x07.csv, line 3\nCorrect it\nerror: a\\nb: not a graph\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        # One file, several, and vertices without ids: each was refused with the advice to print the schema.
        (
            {"a.csv": "p,q,r,s\n0.5,1,2,3\n1.5,2,3,4\n"},
            "no file has columns named like the source and target",
        ),
        (
            {"a.csv": "source,target\nx,y\ny,z\n", "b.csv": "source,target,w\nx,y,1\n"},
            "look like edge tables but have different columns",
        ),
        (
            {"a.csv": "source,target\nx,y\ny,z\n", "b.csv": "f,g\n0.1,0.5\n0.3,0.2\n"},
            "no column seems to contain the vertex ids used by the edges",
        ),
    ],
)
def test_a_schema_can_be_begun_where_nothing_is_guessed(
    files: dict[str, str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        run_here("data", "import", *files, "-o", "g.npz", cwd=tmp_path)
    capsys.readouterr()
    run_here("data", "import", "--print-schema", *files, cwd=tmp_path)
    text = capsys.readouterr().out
    assert text.startswith("# Correct this schema: ")
    assert problem in text.splitlines()[0]
    for name, columns in files.items():
        first = ", ".join(map(repr, columns.splitlines()[0].split(",")))
        assert f"# {name} has the columns {first}" in text
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert read_schema(tmp_path / "s.yaml")


def test_a_file_of_one_column_says_what_edges_need(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("only\n1\n", encoding="utf-8")
    said = refused("data", "import", "--print-schema", "one.csv", cwd=tmp_path)
    assert "edges need two" in said


class Terminal:
    """A stream that is one."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "redraws"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-color", "GIT_PAGER": "less"}, True),
        ({"TERM": "xterm-color", "GIT_PAGER": "cat"}, False),
        ({"TERM": "xterm-256color", "JPY_PARENT_PID": "7"}, False),
    ],
)
def test_a_cell_of_a_notebook_gets_plain_lines(
    variables: dict[str, str], redraws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "GIT_PAGER", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _can_redraw(Terminal()) == redraws  # type: ignore[arg-type]
