"""mkdocs hooks of the site, which add pages from outside docs/ and adapt links between pages."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Extend the module path, because mkdocs loads this file without its folder.
sys.path[:0] = [str(Path(__file__).parent)]

from commands_page import commands_page  # noqa: E402
from figures_pages import figures_index  # noqa: E402
from forked_commands import commands_forked  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from tutorial_pages import tutorial_page, tutorials_index  # noqa: E402

_WORKER = "assets/file_worker.js"
_ASSETS = (_WORKER, "assets/site.css", "assets/site.js")
# Script that the theme would otherwise load from the network.
_REMOTE_WORKER = "https://unpkg.com/iframe-worker/shim"
# Locations on the site of files that are outside docs/.
_PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# Program to which a page refers readers, and the name of its generated page.
_PROGRAM, _PROGRAM_PAGE = "examples/hyrt-plain/hyrt_plain.py", "plain-backend.md"
# Links of the gallery to downloads and pictures in the folder of the page begin with "./".
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|\./)([^)#\s]+)(#[^)]*)?\)")
# The stack is closed at the end of the build.
_BUILDING = ExitStack()


def on_config(config: Any) -> Any:
    """Remove the gallery's styles and pictures, so that its pages look like all others.

    The tutorials run after this hook and before any other hook.
    """
    _BUILDING.enter_context(commands_forked())
    config.extra_css = [each for each in config.extra_css if not each.startswith("sg_gallery")]
    config.theme.dirs = [each for each in config.theme.dirs if "mkdocs_gallery" not in str(each)]
    return config


def on_post_build(config: Any) -> None:
    """Stop the process from which tutorial commands are forked."""
    _BUILDING.close()


def on_build_error(error: Exception) -> None:
    """Stop the process from which tutorial commands are forked."""
    _BUILDING.close()


def on_files(files: Files, config: Any) -> Files:
    """Add the README, the changelog, the commands page and the benchmark results."""
    pages = {place: (ROOT / name).read_text(encoding="utf-8") for name, place in _PLACES.items()}
    pages["reference/commands.md"] = commands_page()
    program = (ROOT / _PROGRAM).read_text(encoding="utf-8")
    pages[_PROGRAM_PAGE] = f"# A backend written in NumPy\n\n`{_PROGRAM}`:\n\n```python\n{program}```\n"
    figures = sorted((ROOT / "benchmarks").glob("*.md"), reverse=True)
    pages["figures/index.md"] = figures_index(figures)
    # Replace the gallery's page list, which uses pictures as links, by one with sentences.
    listed = files.get_file_from_path("tutorials/index.md")
    if listed is not None:
        files.remove(listed)
    pages["tutorials/index.md"] = tutorials_index(sorted((ROOT / "tutorials").glob("*.py")))
    pages |= {f"figures/{path.name}": path.read_text(encoding="utf-8") for path in figures}
    for place, content in pages.items():
        # Pages that are listed on the benchmark index or the backends page need no navigation entry.
        file = File.generated(config, place, content=content)
        if place.startswith("figures/2") or place == _PROGRAM_PAGE:
            file.inclusion = type(file.inclusion).NOT_IN_NAV
        files.append(file)
    for place in _ASSETS:
        source = ROOT / "tools" / "site" / Path(place).name
        files.append(File.generated(config, place, content=source.read_text(encoding="utf-8")))
    return files


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Remove network requests from a page, and header cells from the empty corners of tables."""
    output = re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", output)
    return output.replace(_REMOTE_WORKER, "../" * page.file.dest_uri.count("/") + _WORKER)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Correct the script path of the 404 page, which is at the top level of the site."""
    return output_content.replace(_REMOTE_WORKER, _WORKER)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Convert links between files of the repository to links between pages of the site."""
    origin = _origin(page.file.src_uri)
    if origin is None:
        return markdown
    if origin.parent.name == "tutorials":
        markdown = tutorial_page(markdown)
    up = "../" * page.file.src_uri.count("/")

    def to_site_link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        name = (origin.parent / target).resolve().relative_to(ROOT).as_posix()
        place = _place(name)
        # Code is not part of the site, so show its path in the repository instead of a link.
        return f"`{text.strip('`')}`" if place is None else f"[{text}]({up}{place}{anchor})"

    return _LINK.sub(to_site_link, markdown)


def _place(name: str) -> str | None:
    """Return the page of a repository file, or None if it is not part of the site."""
    if name in _PLACES:
        return _PLACES[name]
    if name == _PROGRAM:
        return _PROGRAM_PAGE
    if name == "benchmarks":
        return "figures/index.md"
    if name == "tutorials":
        return "tutorials/index.md"
    if name.startswith("tutorials/"):
        return name.removesuffix(".py") + ".md"
    for folder, place in (("benchmarks/", "figures/"), ("docs/", "")):
        if name.startswith(folder):
            return place + name.removeprefix(folder)
    return None


def _origin(place: str) -> Path | None:
    """Return the repository file of a page, or None for a generated page."""
    for name, known in _PLACES.items():
        if place == known:
            return ROOT / name
    if place.startswith("figures/"):
        return ROOT / "benchmarks" / Path(place).name
    if place.startswith("tutorials/") and not place.endswith("index.md"):
        return (ROOT / place).with_suffix(".py")
    path = ROOT / "docs" / place
    return path if path.exists() else None
