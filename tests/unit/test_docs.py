from __future__ import annotations

import itertools
import re
import subprocess
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from tools.write_configuration_docs import COMPATIBILITY_PAGE, PAGE, compatibility_page, page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_the_page_of_compatibility_is_current() -> None:
    assert COMPATIBILITY_PAGE.read_text(encoding="utf-8") == compatibility_page(), "run `make docs`"


def test_samplers_of_other_packages_are_not_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    foreign = EntryPoint("foreign", "hyrt.sampling.settings.saint_settings:SaintSettings", "hyrt.samplers")
    real = entry_points
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points",
        lambda group: [*real(group=group), *([foreign] if group == foreign.group else [])],
    )
    assert page() == before


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_the_reading_guide_is_short_and_names_what_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    guide = text.split("## Reading guide")[1].split("\n## ")[0]
    entries = re.findall(r"^\d+\. `([\w/.]+)`: (.*?)(?=^\d+\.|\n\n)", guide, re.MULTILINE | re.DOTALL)
    assert 1 <= len(entries) <= 12
    assert len(entries) == len(re.findall(r"^\d+\. ", guide, re.MULTILINE))
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in entries}
    assert sum(source.count("\n") for source in sources.values()) <= 4_200
    for path, sentence in entries:
        for name in re.findall(r"`([\w.]+)`", sentence):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b", sources[path]), f"{path}: {name}"
    for path in re.findall(r"`([\w/]+\.py)`", guide):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_headings_leave_out_no_level(path: Path) -> None:
    """Readers of screens go from heading to heading."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    levels = [1, *map(len, re.findall(r"^(#+) ", text, re.M))]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_make_run_says_how_hyrt_comes_onto_the_path() -> None:
    """Users of `make run` have hyrt in .venv/bin, and type `hyrt` next."""
    told = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # Under another make, it says last which folder it leaves.
    said = [line for line in told.splitlines() if not line.startswith("make[")]
    assert "source .venv/bin/activate" in said[-1]
    assert "source .venv/bin/activate" in PAGES[0].read_text(encoding="utf-8")


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_performance_models_example_runs() -> None:
    page = (ROOT / "docs" / "performance-model.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    # Noise makes steps longer on the whole, and the simulated pipeline fills once.
    assert 1 <= names["run"].iteration_s.mean() / names["prediction"].iteration_s < 1.2
    assert names["scaling"][4] < names["scaling"][1]


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_the_readme_runs(code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["result"].metrics["test"]["accuracy"] > 0.5


@pytest.mark.parametrize("name", ["layers", "full-graph", "heterogeneous"])
def test_the_code_on_pages_runs(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    for code in found:
        exec(code, {})
