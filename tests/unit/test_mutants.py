"""Mutants: which changes of the code are made, and which of them the tests of a small package find."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mutants import choose_mutants, find_mutants, find_tests, main

TOOLS = Path(__file__).parents[2] / "tools"

CODE = '''"""Part of a list."""


def part(rows, size: int = 2, *, is_strict=False):
    """Return the first rows."""
    if len(rows) < size and not is_strict:
        raise ValueError("needs " + str(size) + " rows: lower it by 1")
    return rows[: max(size, 0)]
'''
TEST = """import pytest
from pack.part import part

def test_part():
    assert part([1, 2, 3]) == [1, 2]
    assert part([1, 2]) == [1, 2]
    with pytest.raises(ValueError):
        part([1])
"""


@pytest.mark.parametrize(
    ("code", "mutants"),
    [
        ("a < b <= c", {"comparison a <= b <= c", "comparison a < b < c"}),
        ("a is None", {"comparison a is not None"}),
        ("a and b", {"and/or (a or b)"}),
        ("not a", {"not (a)"}),
        ("2 * (a - b)", {"constant 3 * (a - b)", "+/- 2 * ((a + b))"}),
        ("a = np.minimum(a, b)", {"min/max a = np.maximum(a, b)"}),
        ("a.b = c", {"statement pass"}),
        ("a += b", {"statement pass"}),
        ("raise Missing(f'{n - 1}')", {"statement pass"}),
        ("raise DataError(n + 1)", {"statement pass"}),
        ("def f(a: x[1], b=True) -> y[1]: 'Doc'", {"default def f(a: x[1], b=False) -> y[1]: 'Doc'"}),
        ("class A:\n    b: bool = False", {"default class A:\n    b: bool = True"}),
        ("warnings.warn(a, n + 1)", set()),
        ("'the sum of ' + a", set()),
        ("if TYPE_CHECKING:\n    a = 1", set()),
        ("@dataclass(slots=1)\nclass A: ...", set()),
        ("'é' < a", {"comparison 'é' <= a"}),
    ],
)  # fmt: skip
def test_a_mutant_has_one_change_that_is_no_text(code: str, mutants: set[str]) -> None:
    found = find_mutants(code.encode(), "a.py")
    texts = [mutant.apply(code.encode()).decode() for mutant in found]
    assert {f"{mutant.kind} {text}" for mutant, text in zip(found, texts, strict=True)} == mutants
    for text in texts:
        ast.parse(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a package of one module, and its tests."""
    root = tmp_path / "tree"
    for path, text in {
        "pyproject.toml": "[project]\nname = 'hyrt'\nversion = '1'\nentry-points = {}\n",
        "pack/__init__.py": "",
        "pack/part.py": CODE,
        "tests/unit/pack/test_part.py": TEST,
        "tests/unit/pack/test_another.py": "import pack\n\ndef test_nothing():\n    pass\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


def test_mutants_are_killed_or_survive(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pack", "--count", "99", "--results", str(tree / "results.jsonl")]
    assert main(words, tree) == 0
    lines = capsys.readouterr().out.splitlines()
    outcomes = {line for line in lines if ": pack/part.py" in line}
    assert outcomes == {
        "killed: pack/part.py:4 constant",
        "killed: pack/part.py:4 default",
        "killed: pack/part.py:6 and/or",
        "killed: pack/part.py:6 comparison",
        "killed: pack/part.py:6 not",
        "killed: pack/part.py:7 statement",
        "survived: pack/part.py:8 constant",
        "killed: pack/part.py:8 min/max",
    }
    assert "survivor pack/part.py:8 (constant)" in lines
    assert "    +    return rows[: max(size, 1)]" in lines
    assert lines[-1] == "pack: killed 7 of 8, 88% (0 timed out)"
    assert (tree / "pack" / "part.py").read_text() == CODE
    assert not [path for path in tree.rglob("*") if path.name == "__pycache__"]


def test_results_are_reused_until_the_module_changes(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["pack", "--count", "1", "--results", str(tree / "results.jsonl")]
    assert main(words, tree) == 0
    first = capsys.readouterr().out
    (tree / "tests" / "unit" / "pack" / "test_part.py").unlink()
    assert main(words, tree) == 0
    assert capsys.readouterr().out == first
    (tree / "pack" / "part.py").write_text(CODE + "\n")
    assert main(words, tree) == 0
    assert "survived" in capsys.readouterr().out


def test_tests_that_fail_without_a_mutant_are_refused(tree: Path) -> None:
    (tree / "tests" / "unit" / "pack" / "test_another.py").write_text(
        "def test_nothing():\n    assert False\n"
    )
    with pytest.raises(SystemExit, match="fail without a mutant"):
        main(["pack", "--results", str(tree / "results.jsonl")], tree)


def test_ctrl_c_stops_the_tests_and_the_same_command_continues(tree: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tree / "tests" / "unit" / "pack" / "test_another.py").write_text(
        f"import time\nfrom pack.part import part\nfrom pathlib import Path\n\n"
        f"def test_it():\n    try:\n        part([1])\n    except ValueError:\n        return\n"
        f"    import os\n    Path({str(started)!r}).write_text(str(os.getpid()))\n    time.sleep(99)\n"
    )
    (tree / "tests" / "unit" / "pack" / "test_part.py").rename(
        tree / "tests" / "unit" / "pack" / "test_last.py"
    )
    source = "import sys; from pathlib import Path; from mutants import main; "
    command = [sys.executable, "-c", f"{source}sys.exit(main(sys.argv[2:], Path(sys.argv[1])))", str(tree)]
    command += ["pack", "--count", "99", "--results", str(tree / "results.jsonl")]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS / "faults"), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tool:
        while not started.exists() or not started.read_text():
            assert tool.poll() is None
            time.sleep(0.05)
        tool.send_signal(signal.SIGINT)
        output, errors = tool.communicate(timeout=60)
    assert tool.returncode == 130
    assert "stopped: the same command continues" in errors
    assert "pack: killed" in output
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert not list(tmp_path.glob("hyrt-mutants-*"))
    lines = (tree / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["outcome"] for line in lines} <= {"killed", "survived"}


def test_the_sample_is_fixed_and_the_tests_mirror_the_package() -> None:
    root = TOOLS.parent
    packages = ["hyrt/config", "hyrt/graph/formats"]
    chosen = choose_mutants(root, packages, 5, 0)
    assert chosen == choose_mutants(root, packages, 5, 0) != choose_mutants(root, packages, 5, 1)
    assert [len(mutants) for mutants in chosen.values()] == [3, 2]
    assert find_tests(root, "hyrt/graph/formats/pyg.py") == [
        "tests/unit/graph/test_pyg.py",
        "tests/unit/graph",
    ]
    assert find_tests(root, "devices/hyrt_devices/cuda/saga/cuda_loops.py")[-1] == "tests/unit/cuda"
    assert find_tests(root, "perfmodel/hyrt_perfmodel/network.py")[-1] == "tests/unit/perfmodel"
