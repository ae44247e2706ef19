"""Children that crash, hang, print and end themselves: by importing packages that do."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

PACKAGE_CHECK = "hyrt.doctor.software_probes:probe_package"
PACKAGES = {
    "fine_package": "__version__ = '1.2'\nprint('noise on standard output')",
    "raising_package": "raise RuntimeError('boom\\nin two lines')",
    "leaving_package": "raise SystemExit('left')",
    "crashing_package": "import ctypes\nctypes.string_at(0)",
    "ending_package": "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(3)",
    "hanging_package": "import time\ndef wait():\n    time.sleep(600)\nwait()",
    "later_package": "__version__ = '3'",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("packages")
    for name, text in PACKAGES.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch, IsolatedWorker() as children:
        patch.syspath_prepend(str(folder))
        return children.query(PACKAGE_CHECK, [*PACKAGES, "absent_package"], limit_s=2.0)


def test_every_item_has_an_answer(answers: dict[str, Answer]) -> None:
    assert list(answers) == [*PACKAGES, "absent_package"]
    for name in ("fine_package", "later_package"):
        assert answers[name].problem == ""
    assert answers["fine_package"].first_value("version") == "1.2"
    assert answers["fine_package"].first_value("origin").endswith("fine_package.py")
    assert answers["later_package"].first_value("version") == "3"


def test_what_is_raised_is_one_line(answers: dict[str, Answer]) -> None:
    assert answers["raising_package"].problem == "RuntimeError: boom in two lines"
    assert answers["leaving_package"].problem == "SystemExit: left"
    assert answers["absent_package"].problem.startswith("ModuleNotFoundError")


def test_a_crash_names_its_signal_and_place(answers: dict[str, Answer]) -> None:
    assert answers["crashing_package"].problem.startswith("crashes with SIGSEGV, at ")
    # What was said before the crash is kept.
    assert answers["crashing_package"].first_value("origin").endswith("crashing_package.py")


def test_an_exit_has_its_code_and_last_words(answers: dict[str, Answer]) -> None:
    assert answers["ending_package"].problem == "ends its process with exit code 3: last words"


def test_a_hang_names_its_place(answers: dict[str, Answer]) -> None:
    problem = answers["hanging_package"].problem
    assert problem.startswith("hangs: no answer within 2 s, at ")
    assert problem.endswith("hanging_package.py:3 in wait")


def test_what_no_process_could_be_started_for_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **more: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with IsolatedWorker() as children:
        with monkeypatch.context() as patch:
            patch.setattr("hyrt.runtime.isolated_worker.subprocess.Popen", refuse)
            answer = children.query(PACKAGE_CHECK, ["wave"], limit_s=2.0, block_imports=True)["wave"]
            assert answer.problem.startswith("no process could be started to ask it: Resource temporarily ")
        assert children.query(PACKAGE_CHECK, ["wave"], limit_s=2.0, block_imports=True)["wave"].problem == ""


def test_a_child_that_cannot_start_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with IsolatedWorker() as children:
        answer = children.query(PACKAGE_CHECK, ["json"], limit_s=2.0)["json"]
    assert "exit code 1" in answer.problem
    assert "ModuleNotFoundError" in answer.problem


def test_what_ended_a_process_is_imported_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_package.py").write_text("import os\nos._exit(2)")
    (tmp_path / "ending_package.py").write_text("import os\nos._exit(3)")
    (tmp_path / "user_package.py").write_text("import ending_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with IsolatedWorker() as children:
        first = children.query(
            PACKAGE_CHECK, ["first_package", "ending_package"], limit_s=20.0, block_imports=True
        )["ending_package"]
        second = children.query(PACKAGE_CHECK, ["user_package"], limit_s=20.0)["user_package"]
    assert first.problem == "ends its process with exit code 3"
    assert second.problem == f"ImportError: {first.problem}"


def test_one_process_answers_all_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "naming_package.py").write_text("import os\n__version__ = str(os.getpid())")
    (tmp_path / "second_package.py").write_text(
        "import os, sys\n__version__ = str(os.getpid())\nsys.stdin.read()"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with IsolatedWorker() as children:
        answers = [
            children.query(PACKAGE_CHECK, [name], limit_s=20.0)[name]
            for name in ("naming_package", "second_package")
        ]
    # What is checked reads an empty standard input, not the next request.
    assert [answer.problem for answer in answers] == ["", ""]
    assert answers[0].first_value("version") == answers[1].first_value("version")


def test_closing_ends_a_child_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_package.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(600)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    children = IsolatedWorker()
    found: dict[str, Answer] = {}
    thread = threading.Thread(
        target=lambda: found.update(children.query(PACKAGE_CHECK, ["endless_package", "json"], limit_s=100.0))
    )
    thread.start()
    end = time.monotonic() + 20
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    started = time.monotonic()
    children.close()
    thread.join(20)
    assert time.monotonic() - started < 5
    assert "SIGKILL" in found["endless_package"].problem
    assert "stopped" in found["json"].problem
