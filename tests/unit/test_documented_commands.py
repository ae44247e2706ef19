"""What the documentation tells people to type, hyrt takes; what it shows is tested, or dated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from in_process import refused, run_here

from hyrt.cli.commands import app
from hyrt.config import Config, apply_overrides, build_config
from hyrt.config.command_line import option_overrides, short_option_overrides
from hyrt.config.load import flatten_settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
LAUNCHERS = ("torchrun", "srun")
DATED = re.compile(r"\b20\d\d-\d\d-\d\d\b")
PROCESSOR = re.compile(r"\b(EPYC|Xeon|[AHV]\d00|H200)\b")
# Errors on pages, by a part that a test asks for, and the file of that test.
TESTED = {
    "unknown setting 'train.epoch'": "tests/unit/test_documented_commands.py",
    "2 values or rows are wrong; nothing is written": "tests/unit/graph/test_import.py",
    "value 1000000 at position 100 is out of range for 2,708 vertices": "tests/unit/graph/test_check.py",
    "value 16 at position 0 is a vertex of type 'field'": "tests/unit/graph/test_hetero_files.py",
    "differ from what was written": "tests/unit/graph/test_formats.py",
}


class Block(NamedTuple):
    """A block of code of a page."""

    language: str
    line: int
    text: str
    around: str
    """The section that it is in, without it."""


def blocks(path: Path) -> Iterator[Block]:
    """Fenced ones, and indented ones after an empty line."""
    page = path.read_text(encoding="utf-8")
    found = re.compile(
        r"^```(?P<language>\w*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n(?= {4}))+)",
        re.M | re.S,
    )
    heads = [head.start() for head in re.finditer(r"^#+ ", page, re.M)]
    for block in found.finditer(page):
        start = max((head for head in heads if head < block.start()), default=0)
        end = min((head for head in heads if head > block.end()), default=len(page))
        text = block["fenced"] or re.sub(r"^ {4}", "", block["indented"] or "", flags=re.M)
        yield Block(
            language=block["language"] or "",
            line=page[: block.start()].count("\n") + 1,
            text=text,
            around=page[start : block.start()] + page[block.end() : end],
        )


def commands(text: str) -> Iterator[list[str]]:
    """The words after `hyrt` of each line that is a command of ours, as a shell makes them."""
    lines = re.sub(r" *\\\n\s*", " ", re.sub(r"\[(--[a-z-]+)\]", r"\1", text)).splitlines()
    # Where a line has a prompt, those without are output.
    prompted = [line for line in lines if line.startswith("$ ")]
    for line in prompted or lines:
        words = shlex.split(line.removeprefix("$ "), comments=True) if _is_command(line) else []
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words and words[0] in LAUNCHERS and "hyrt" in words:
            assert words[words.index("hyrt") - 1] == "-m", line
            words = words[words.index("hyrt") :]
        if words and words[0] == "hyrt":
            # What follows goes to another program or a file; three points stand for what is left out.
            end = next((at for at, word in enumerate(words) if word in (">", "|", "&&")), len(words))
            yield [word for word in words[1:end] if word != "..."]


def _is_command(line: str) -> bool:
    return re.match(rf"(\$ )?([A-Z_]+=\S+ )*(hyrt|{'|'.join(LAUNCHERS)}) ", line.strip()) is not None


@cache
def group() -> Any:
    return typer.main.get_command(app)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words after them."""
    command, rest = group(), words
    while hasattr(command, "commands"):
        assert rest, f"hyrt {shlex.join(words)}: no command"
        assert rest[0] in command.commands, f"hyrt {shlex.join(words)}: there is no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def check(words: list[str]) -> None:
    """Options and arguments are those of the command, and settings those of a run."""
    if not words or words[0].startswith("-"):
        assert set(words) <= {option for each in group().params for option in each.opts}
        return
    command, rest = command_of(words)
    with command.make_context(command.name, list(rest)) as context:
        given = context.params
    told = [word for word in given.get("arguments") or [] if "=" in word]
    if "arguments" in given:
        names = ("epochs", "lr", "hidden", "layers", "batch_size", "seed")
        short = short_option_overrides(*(given.get(name) for name in names))
        options = {"data__source": given.get("data"), "model__kind": given.get("model")}
        options["devices"] = given.get("devices")
        full = ["sampler.kind=full"] if given.get("full_graph") else []
        build_config(apply_overrides({}, [*option_overrides(**options), *full, *short, *told]))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_of_pages_are_taken(path: Path) -> None:
    for block in blocks(path):
        if block.language not in ("python", "yaml", "toml") and "error: unknown setting" not in block.text:
            for words in commands(block.text):
                try:
                    check(words)
                except Exception as error:
                    pytest.fail(f"{path.name}:{block.line}: hyrt {shlex.join(words)}: {error}")


def every_command(command: Any = None, path: str = "hyrt") -> Iterator[tuple[str, Any]]:
    command = command or group()
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


@pytest.mark.parametrize(("path", "command"), list(every_command()), ids=lambda each: str(each))
def test_examples_of_help_are_taken(path: str, command: Any) -> None:
    for words in commands(command.help or ""):
        check(words)


@cache
def settings() -> frozenset[str]:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)*)`", page)
    sections = set(Config.model_fields)
    return frozenset(
        {name for name, _ in flatten_settings(build_config({}).model_dump())}
        | {name for name in named if name.split(".")[0] in sections}
    )


@pytest.mark.parametrize("path", [*PAGES, *TUTORIALS], ids=lambda path: path.name)
def test_commands_and_settings_in_sentences_exist(path: Path) -> None:
    """In code spans: the command, its options, and every setting."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    sections = "|".join(Config.model_fields)
    for span in re.findall(r"`([^`\n]+(?:\n(?!\n)[^`\n]+)?)`", text):
        span = " ".join(span.replace("\n# ", " ").split())
        for name in re.findall(rf"^((?:{sections})\.[a-z_0-9.]+?)(?:=.*)?$", span):
            is_file = name.endswith((".yaml", ".json", ".py", ".md", ".html", ".npz", ".h"))
            known = any(known == name or known.startswith(f"{name}.") for known in settings())
            assert is_file or known, f"{path.name}: there is no setting {name}"
        if re.match(r"hyrt [a-z]", span):
            words = shlex.split(span.partition(" | ")[0])[1:]
            taken = []
            while words and hasattr(command_of_prefix(taken), "commands"):
                taken, words = [*taken, words[0]], words[1:]
                assert command_of_prefix(taken) is not None, f"{path.name}: there is no command {span!r}"
            command = command_of_prefix(taken)
            options = {"--help", *(option for each in command.params for option in each.opts)}
            given = {word.partition("=")[0] for word in words if word.startswith("-")}
            assert given <= options, f"{path.name}: {span}: {given - options} is no option"


def command_of_prefix(words: list[str]) -> Any:
    command = group()
    for word in words:
        command = next((inner for name, inner in command.commands.items() if name in word.split("|")), None)
        if command is None:
            return None
    return command


def is_prediction(block: Block) -> bool:
    """Of a named platform, whose numbers are the same everywhere and every day."""
    return re.match(r"\$ hyrt predict [^\n]*(\\\n)?[^\n]*--platform", block.text) is not None


def shows_output(text: str) -> bool:
    """Whether lines follow a command, or are what one prints when it refuses."""
    lines = [line for line in re.sub(r" *\\\n\s*", " ", text).splitlines() if line.strip()]
    prompted = any(line.startswith("$ ") for line in lines)
    return lines != [] and (
        (prompted and any(not line.startswith("$ ") for line in lines))
        or lines[0].startswith(("error:", "warning:"))
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_output_on_pages_is_tested_or_says_when_and_where_it_was_printed(path: Path) -> None:
    for block in blocks(path):
        is_tested = any(text in block.text for text in TESTED) or is_prediction(block)
        if shows_output(block.text) and not is_tested:
            told = re.sub(r"\]\([^)]*\)", "]", block.around)
            said = any(DATED.search(each) and PROCESSOR.search(each) for each in re.split(r"\n\n", told))
            assert said, f"{path.name}:{block.line}: say on which processor and day this was printed"


PREDICTIONS = [block for path in PAGES for block in blocks(path) if is_prediction(block)]


@pytest.mark.parametrize("block", PREDICTIONS, ids=lambda block: str(block.line))
def test_predictions_for_named_platforms_are_those_on_the_pages(
    block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three points stand for any lines, which are those of a wide terminal."""
    monkeypatch.setenv("COLUMNS", "1000")
    lines = block.text.splitlines()
    first = next(at for at, line in enumerate(lines) if not line.endswith("\\")) + 1
    (words,) = commands("\n".join(lines[:first]))
    shown = "\n".join(lines[first:])
    run_here(*words, cwd=tmp_path)
    wanted = re.escape(shown.rstrip() + "\n").replace(re.escape("...\n"), "(?:.*\n)*")
    printed = capsys.readouterr().out
    if not shown.rstrip().endswith("..."):
        wanted += "(?:(?:estimated error|assumed).*\n)*"
    assert re.fullmatch(wanted, printed), f"the page shows what is printed no longer:\n{printed}"


@pytest.mark.parametrize(("part", "file"), TESTED.items())
def test_errors_on_pages_are_asked_for_by_tests(part: str, file: str) -> None:
    assert part in (ROOT / file).read_text(encoding="utf-8")
    assert any(part in block.text for path in PAGES for block in blocks(path))


def test_an_unknown_setting_is_refused_as_shown(tmp_path: Path) -> None:
    shown = [block.text for block in blocks(PAGES[0]) if "unknown setting" in block.text]
    [(command, line)] = [text.splitlines() for text in shown]
    assert line == "error: " + refused(*shlex.split(command)[2:], cwd=tmp_path)


def test_the_checks_here_fail_where_they_should() -> None:
    for words in ("run --epoch 3", "run train.epoch=3", "runs", "plot a", "data infos x", "run --data"):
        with pytest.raises((Exception, SystemExit)):
            check(words.split())
    assert shows_output("$ hyrt run\nhyrt 0.1.0\n")
    assert not shows_output("$ hyrt run \\\n    --quiet\n")
    assert list(commands("$ A=1 hyrt run --data 'a b' > x  # why\nhyrt is here\n")) == [
        ["run", "--data", "a b"],
    ]  # fmt: skip
