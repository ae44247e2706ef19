"""What the documentation site is made of; that its links and pages hold, `make docs-site` checks itself."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from hyrt.cli.commands import app
from tools.site.commands_page import commands_page
from tools.site.figures_pages import figures_index

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.findall(r"^::: (\S+)", (ROOT / "docs/reference/python.md").read_text(encoding="utf-8"), re.M)
CODE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/from-pyg.md").read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_everything_on_the_page_of_python_says_what_it_is(name: str) -> None:
    """Also every public method and function of what is shown whole."""
    try:
        shown: Any = importlib.import_module(name)
    except ModuleNotFoundError:
        home, _, last = name.rpartition(".")
        shown = getattr(importlib.import_module(home), last)
    assert inspect.getdoc(shown)
    for key, member in vars(shown).items():
        own = getattr(member, "__module__", None) in (name, getattr(shown, "__module__", None))
        if own and not key.startswith("_") and (inspect.isfunction(member) or inspect.isclass(member)):
            assert inspect.getdoc(member), f"{name}.{key}"


def test_the_page_of_commands_has_every_option_of_every_command() -> None:
    page = commands_page()

    def check(group: Any, path: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                check(command, f"{path} {name}")
                continue
            _, found, rest = page.partition(f"## {path} {name}\n")
            assert found, name
            section = rest.partition("\n## ")[0]
            for each in command.params:
                assert all(option in section for option in each.opts if option.startswith("--")), each.name
            for line in (command.help or "").split("\n"):
                if line.strip().startswith(f"{path} {name}"):
                    assert f"    {line.strip()}\n" in section

    check(typer.main.get_command(app), "hyrt")


def test_pages_of_figures_are_listed_by_date_and_title(tmp_path: Path) -> None:
    page = tmp_path / "2026-11-24-speed.md"
    page.write_text("# 2026-11-24: how fast a step is\n\nFast.\n")
    assert "| 2026-11-24 | [How fast a step is](2026-11-24-speed.md) |\n" in figures_index([page])
    page.write_text("# Speed of a step, 24 November 2026\n")
    assert "[Speed of a step]" in figures_index([page])
    page.write_text("Fast.\n")
    with pytest.raises(ValueError, match="begins with a heading"):
        figures_index([page])


def test_the_way_over_from_pyg_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the page's code but PyG's own loop, on a small graph."""
    pyg = pytest.importorskip("torch_geometric.data")
    import torch

    from hyrt.graph import open_graph

    graph = open_graph("synthetic:tiny")
    starts = torch.from_numpy(graph.topology.indptr)
    ends = torch.repeat_interleave(torch.arange(graph.num_vertices), starts.diff())
    data = pyg.Data(
        x=torch.from_numpy(graph.features.values.copy()),
        edge_index=torch.stack([torch.from_numpy(graph.topology.indices).long(), ends]),
        y=torch.from_numpy(graph.labels).long(),
        **{f"{name}_mask": torch.from_numpy(graph.masks[name].copy()) for name in ("train", "val", "test")},
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"data": data}
    for code in CODE:
        if "NeighborLoader" not in code:
            exec(code.replace('"epochs": 20', '"epochs": 2'), names)
    assert names["result"].metrics["test"]["accuracy"] > 0.5
    written = open_graph("mine.npz")
    assert (written.num_vertices, written.num_edges) == (graph.num_vertices, graph.num_edges)
