"""Files for those who install, build or cite hyrt say the same as pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = read("packaging/conda/recipe.yaml")
    wanted = {name.replace("torch", "pytorch") for name in PROJECT["dependencies"]}
    wanted.add(f"python{PROJECT['requires-python']}")
    assert {name.replace(" ", "") for name in recipe["requirements"]["run"]} == wanted
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["about"]["license"] == PROJECT["license"]
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_images_install_extras_that_there_are(kind: str) -> None:
    text = (ROOT / "packaging" / "docker" / f"{kind}.Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r'"/src\[(.+)\]"', text)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert "USER 1000" in text


@pytest.mark.parametrize("name", ["fault", "wish"])
def test_a_form_asks_each_thing_once(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert all(field["attributes"]["label"] for field in form["body"])
