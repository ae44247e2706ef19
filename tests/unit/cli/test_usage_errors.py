"""What the command line says of words that it cannot follow; no process is started for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import refused, run_here
from typer.main import get_command

import hyrt.cli
from hyrt.cli.commands import _COMMANDS, _check_current_folder, _end, _run_command, app
from hyrt.cli.options import _RENAMED_OPTIONS
from hyrt.errors import ConfigError, DataWriteError, HyrtError, Interrupted, SettingWarning, StageError


def _error(*words: str) -> str:
    with pytest.raises(HyrtError) as caught:
        app([*words], prog_name="hyrt", standalone_mode=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "unknown command 'train': use hyrt run"),
        ("resume runs/mine", "unknown command 'resume': use hyrt run"),
        ("evaluate runs/mine", "unknown command 'evaluate': use hyrt eval"),
        ("inference runs/mine", "unknown command 'inference': use hyrt infer"),
        ("benchmark", "unknown command 'benchmark': use hyrt calibrate"),
        ("convert a.npz b", "unknown command 'convert': use hyrt data convert"),
        ("run --seeds 1000000000", "--seeds 1000000000 must be at most 10000"),
        ("run --patience 3", "--patience is not an option of hyrt run: write train.patience=3"),
        ("run --device cpu", "--device is not an option of hyrt run: did you mean --devices?"),
        ("run -o mine", "-o is not an option of hyrt run: did you mean --output?"),
        ("infer r", "hyrt infer: missing option '--output' / '-o': see hyrt infer --help"),
        ("eval", "hyrt eval: missing argument 'RUN': see hyrt eval --help"),
        ("eval a b", "hyrt eval: got unexpected extra argument(s) (b): see hyrt eval --help"),
        ("run --name", "hyrt run: option '--name' requires an argument: see hyrt run --help"),
        ("run --resume r --name mine", "a resumed run stays in its folder, r: remove --name"),
        ("run --resume r --output elsewhere", "a resumed run stays in its folder, r: remove --output"),
        (
            "infer r -o s.txt",
            "s.txt does not end in .npy or .csv: choose a name that does",
        ),
        (
            "infer r -o -",
            "--output is -, but hyrt does not write to standard output: specify the name of a file",
        ),
        ("run --seeds 0", "--seeds 0 must be at least 1"),
        ("run --seeds x", "--seeds x must be an integer"),
        ("doctor --limit x", "--limit x must be a number"),
        ("doctor --limit 0", "--limit 0 must be at least 0.1"),
        ("frobnicate", "unknown command 'hyrt frobnicate': see hyrt --help"),
        ("data inof x", "unknown command 'hyrt data inof': did you mean hyrt data info?"),
        ("rn", "unknown command 'hyrt rn': did you mean hyrt run?"),
        ("data conver a b", "unknown command 'hyrt data conver': did you mean hyrt data convert?"),
        ("fpga exlpore", "unknown command 'hyrt fpga exlpore': did you mean hyrt fpga explore?"),
        ("--foo", "hyrt: no such option: --foo: see hyrt --help"),
        (
            "run train.epochs=",
            "train.epochs= has no value: write train.epochs=null for the default, "
            "train.epochs='\"\"' for an empty string",
        ),
    ],
)
def test_words_that_cannot_be_followed(words: str, message: str) -> None:
    assert _error(*words.split()) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--data", ""], "--data is empty: set a value, or remove it"),
        # As a path it would be the current folder: to write into, and with --force to replace.
        (["run", "--output", ""], "--output is empty: set a value, or remove it"),
        (["run", "--resume", ""], "--resume is empty: set a value, or remove it"),
        (
            ["data", "convert", "a.npz", "", "--force"],
            "the argument DESTINATION is empty: set a value",
        ),
        (["report", "a", ""], "the argument RUN... is empty: set a value"),
        (["infer", "r", "-o", ""], "--output or -o is empty: set a value"),
        (
            ["run", ""],
            "the argument [CONFIG.yaml] [key.path=value ...] is empty: set a value, or remove it",
        ),
        (["predict", "--platform", ""], "--platform is empty: set a value, or remove it"),
    ],
)
def test_words_that_are_empty(words: list[str], message: str) -> None:
    assert _error(*words) == message


def test_a_calibration_that_could_not_be_kept_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured before it was known where to keep it")

    monkeypatch.setattr("hyrt.predict.calibrate.machine.calibrate", measured)
    with pytest.raises(
        DataWriteError, match=r"cannot be stored in .*\): set XDG_CACHE_HOME to a writable folder"
    ):
        app(["calibrate"], prog_name="hyrt", standalone_mode=False)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (StageError("error in load at step 3: x"), "error in load at step 3: x\n"),
        (
            ConfigError(os.fsdecode(b"runs/\xfa\xe9: no such folder")),
            "error: runs/\\xfa\\xe9: no such folder\n",
        ),
        (ConfigError("é: no such folder"), "error: é: no such folder\n"),
        (ConfigError("a\nb\x1b[1m: no such folder"), "error: a\\nb\\x1b[1m: no such folder\n"),
    ],
)
def test_an_error_is_printed_once_and_with_what_a_name_consists_of(
    error: HyrtError, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYRT_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as ended:
        _end(error, str(error), error.exit_code)
    assert ended.value.code == error.exit_code
    assert capsys.readouterr().err == printed


def test_a_current_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(
        ConfigError, match=r"the current folder no longer exists .*: change to another folder"
    ):
        _check_current_folder()


def test_splits_and_the_one_split_of_the_settings(tmp_path: Path) -> None:
    words = ["run", "--data", "synthetic:tiny", "--output", str(tmp_path / "runs")]
    assert (
        _error(*words, "--splits", "0", "data.split=2")
        == "--splits 0 cannot be combined with data.split=2: remove data.split"
    )
    links = [*words, "train.objective=links"]
    assert _error(*links, "--splits", "all").startswith(
        "--splits all has no effect with train.objective=links"
    )
    assert "data.split=1 has no effect with train.objective=links" in _error(*links, "data.split=1")
    few = [*links, "links.candidates=48", "train.metric=hits@50"]
    assert "train.metric=hits@50 is always 1 with links.candidates=48: set" in _error(*few)
    last = 2**63 - 1
    assert _error(*words, "--seeds", "2", f"seed={last}") == (
        f"--seeds 2 with seed={last} would exceed the largest seed, {last}: lower seed"
    )
    assert not (tmp_path / "runs").exists()


def test_an_interrupted_start_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import builtins

    from hyrt.cli import main

    real = builtins.__import__

    def interrupted(name: str, *rest: object) -> object:
        if name == "hyrt.cli.commands":
            raise KeyboardInterrupt
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "interrupted before the command started\n")


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (Interrupted, 130, "interrupted\n"),
        (
            KeyboardInterrupt,
            1,
            rf"error: KeyboardInterrupt was raised at {re.escape(__file__)}:\d+ without Ctrl-C: "
            r"raise a different exception there, or run without that package\n",
        ),
    ],
)
def test_an_interrupted_command_says_so_in_a_line(
    raised: type[BaseException],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> object:
        raise raised

    monkeypatch.setattr("hyrt.cli.options.Group.invoke", interrupted, raising=False)
    with pytest.raises(SystemExit) as ended:
        app(["devices"], prog_name="hyrt")
    assert ended.value.code == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(says, errors)


def test_a_model_for_which_there_is_no_memory(tmp_path: Path) -> None:
    width = 10**12
    arrays = {
        "indptr": np.zeros(4, np.int64),
        "indices": np.zeros(0, np.int32),
        "labels": np.array([0, 1, 0]),
        "feat_indptr": np.zeros(4, np.int64),
        "feat_indices": np.zeros(0, np.int32),
        "feat_values": np.zeros(0, np.float32),
        "feat_shape": np.array([3, width]),
        **{f"{split}_mask": np.arange(3) == i for i, split in enumerate(("train", "val", "test"))},
    }
    np.savez(tmp_path / "wide.npz", **arrays)
    words = ["run", "--data", str(tmp_path / "wide.npz"), "--output", str(tmp_path / "runs")]
    assert _error(*words) == (
        "there is not enough memory for layer 0 with 1,000,000,000,000 x 128 weights: lower model.hidden or "
        "the number of features"
    )


def test_a_folder_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Even a folder without write permission can be written by root, who may run the tests.
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode & os.W_OK))
    assert _error("infer", "no-run", "-o", str(tmp_path / "scores.npy")) == (
        f"the folder {tmp_path} is not writable: choose another --output"
    )


def test_a_pipe_behind_a_name_is_no_regular_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        # What it is links to a name that no folder has.
        name = f"/proc/self/fd/{writer}"
        assert _error("infer", "no-run", "-o", name) == (
            f"{name} is a special file: specify a regular file as --output"
        )
    finally:
        os.close(reader)
        os.close(writer)


def test_help_calls_arguments_and_values_by_words_and_not_by_types() -> None:
    def helped(command: Any, context: Any) -> Iterator[tuple[str, str]]:
        yield context.command_path, command.get_help(context)
        for name, each in getattr(command, "commands", {}).items():
            inner = each.make_context(name, [], parent=context, resilient_parsing=True)
            yield from helped(each, inner)

    root = get_command(app)
    texts = dict(helped(root, root.make_context("hyrt", [], resilient_parsing=True)))
    assert len(texts) > 18
    of_types = re.compile(r"<(str|path|int|float|list)|[{}]|\[\[|\.\.\.\.", re.IGNORECASE)
    assert not [
        (path, line) for path, text in texts.items() for line in text.split("\n") if of_types.search(line)
    ]
    assert texts["hyrt run"].startswith("Usage: hyrt run [OPTIONS] [CONFIG.yaml] [key.path=value ...]\n")
    assert texts["hyrt report"].startswith("Usage: hyrt report [OPTIONS] RUN...\n")


def test_a_package_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where there is no memory for a library of torch's."""

    def fails(**_: object) -> None:
        raise ImportError("libtorch_cpu.so: failed to map\nsegment", name="torch._C")

    monkeypatch.setattr("hyrt.cli.commands.app", fails)
    with pytest.raises(SystemExit) as ended:
        _run_command()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "error: torch cannot be imported (libtorch_cpu.so: failed to map segment): see the output of "
        "`hyrt doctor`\n"
    )


def test_a_file_whose_name_looks_like_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^-y is not an option of hyrt data info: use --help to list the options$"
    ):
        app(["data", "info", "-y z.npz"], prog_name="hyrt", standalone_mode=False)
    Path("-y z.npz").touch()
    says = r"^-y is not an option of hyrt data info: to name the file, write '\./-y z\.npz'$"
    with pytest.raises(ConfigError, match=says):
        app(["data", "info", "-y z.npz"], prog_name="hyrt", standalone_mode=False)


def test_a_path_may_begin_at_home_where_a_shell_leaves_it_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in `--output=~/mine.yaml`: a folder named ~ is what nobody wants."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    run_here("data", "generate", "tiny,vertices=60", "~/x.npz", cwd=tmp_path)
    run_here("init", "--data=~/x.npz", "--output=~/x.yaml", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["x.npz", "x.yaml"]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    for words in (["report", "~/none"], ["eval", "~/none"]):
        assert refused(*words, cwd=tmp_path).startswith(f"{tmp_path / 'home' / 'none'} does not exist: ")


@pytest.mark.parametrize(("is_ignored", "ends"), [(True, 0), (False, 128 + signal.SIGHUP)])
def test_under_nohup_a_terminal_may_close(is_ignored: bool, ends: int) -> None:
    code = (
        "import os, signal\n"
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if is_ignored else 'SIG_DFL'})\n"
        "from hyrt.cli import commands\n"
        "commands.app = lambda **_: os.kill(os.getpid(), signal.SIGHUP)\n"
        "commands.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == ends


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError("no room"), "error: memory ran out (no room): free memory, allow more (ulimit -v), or "),
        (
            PermissionError(13, "Permission denied", "a.npz"),
            "error: a.npz: Permission denied: use one that ",
        ),
        (OSError(24, "Too many open files", "b"), "error: b: Too many open files: allow more open files"),
        (OSError(28, "No space left"), "error: the output cannot be written: No space left: free space, or"),
        (
            RuntimeError("can't start new thread"),
            "error: no more threads can be started: raise the limits (ulim",
        ),
        (
            OSError("no libllvmlite.so"),
            "error: a resource of this machine cannot be used: no libllvmlite.so\n",
        ),
    ],
)
def test_what_the_machine_refuses_is_told_with_a_remedy(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr("hyrt.cli.commands.app", fails)
    with pytest.raises(SystemExit) as ended:
        _run_command()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(says)


def test_where_hyrt_cannot_be_loaded_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where there is no memory for numba's compiler."""
    monkeypatch.setitem(sys.modules, "hyrt.cli.commands", None)
    with pytest.raises(SystemExit) as ended:
        hyrt.cli.main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("error: hyrt cannot be loaded (ModuleNotFoundError: ")
    assert len(told.splitlines()) == 1


def test_a_folder_that_may_not_be_entered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hyrt.cli.commands.os.stat", refuses)
    with pytest.raises(
        ConfigError, match=r"the current folder cannot be accessed .*: change to another folder$"
    ):
        _check_current_folder()


def test_former_names_of_options_still_work_and_warn_once() -> None:
    for words in (
        "partition --data cora --parts 2 -o {} --most-vertices 1",
        "predict --ranks 2 --homes={}",
        "data convert cora {} --rows int4",
        "infer {} -o s.npy --what classes",
    ):
        old = next(
            word.partition("=")[0] for word in words.split() if word.partition("=")[0] in _RENAMED_OPTIONS
        )
        new = _RENAMED_OPTIONS[old]
        absent = "/absent/place"
        with pytest.warns(SettingWarning, match=f"^{old} was renamed: use {new}$") as warned:
            message = _error(*words.format(absent).split())
        assert len(warned) == 1
        assert message == _error(*words.replace(old, new).format(absent).split())
        assert "is not an option" not in message
    assert set(_RENAMED_OPTIONS) == {"--most-vertices", "--homes", "--rows", "--what"}


def test_the_list_of_commands_has_the_first_sentence_of_each_and_imports_none() -> None:
    root = get_command(app)
    for name, command in root.commands.items():
        assert command.name == name
        assert (command.help or "").split("\n\n")[0].replace("\n", " ").strip("\b ") == _COMMANDS[name][1]
    code = (
        "import sys; sys.argv = ['hyrt', '--help']\n"
        "from hyrt.cli import main\n"
        "try: main()\n"
        "finally: assert not {'hyrt.cli.run', 'hyrt.cli.data', 'numpy', 'pydantic'} & sys.modules.keys()\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    for name, (_, summary) in _COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", shown.stdout, re.MULTILINE)
