"""Commands of tutorials, as they run while the site is built."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from forked_runs import ForkedRuns

from tools.site import forked_commands

HYRT = [sys.executable, "-m", "hyrt"]


def test_they_are_forked_and_end_as_if_they_were_started(
    runs: ForkedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forked_commands, "ForkedRuns", lambda **environment: nullcontext(runs))
    forked, start, before = [], runs.start, subprocess.run

    def noted(words: list[str], *given: Any, **more: Any) -> Any:
        forked.append(words)
        return start(words, *given, **more)

    monkeypatch.setattr(runs, "start", noted)
    caught: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    with forked_commands.commands_forked():
        assert subprocess.run([*HYRT, "--version"], check=True, **caught).stdout == "hyrt 0.1.0\n"
        assert subprocess.run([*HYRT, "--version"], stdout=subprocess.DEVNULL).returncode == 0
        assert capsys.readouterr().out == ""
        assert subprocess.run([*HYRT, "--version"]).stdout is None
        assert capsys.readouterr().out == "hyrt 0.1.0\n"
        with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
            subprocess.run([*HYRT, "runn"], check=True, **caught)
        assert "runn" in capsys.readouterr().err
        assert forked == [["--version"]] * 3 + [["runn"]]
        assert subprocess.run([sys.executable, "-c", "print(1)"], **caught).stdout == "1\n"
        assert len(forked) == 4
    assert subprocess.run is before
