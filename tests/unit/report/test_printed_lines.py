"""Paths in lines of text, against what a shell makes of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from hyrt.report.printed_lines import install_encoding_fallback, quote_path


@pytest.mark.parametrize(
    "name",
    [
        b"runs/2026-11-21-101502-graphsage-community",
        b"my run",
        b"it's",
        "Gr\u00f6\u00dfe".encode(),
        b"b\xffd",
        b"\xe9t\xe9 'q' \\x41 \x01\n$HOME",
        "Gr\u00f6\u00dfe".encode() + b"\xff",
    ],
)
def test_a_path_can_be_pasted_into_a_shell(name: bytes) -> None:
    word = quote_path(os.fsdecode(name))
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == name


def test_plain_paths_stay_as_they_are() -> None:
    assert quote_path("runs/a-1") == "runs/a-1"


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", b"a - b <-> \\xff? ...\n"),
        ("latin-1", "a · b <-> \\xffü ...\n".encode("latin-1")),
        ("utf-8", "a · b <-> \\xffü …\n".encode()),
    ],
)
def test_any_letters_can_be_printed(encoding: str, printed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what prints as Python does: an output of few letters ends no command."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    install_encoding_fallback()
    print("a · b <-> \udcffü …", flush=True)
    assert output.getvalue() == printed
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    install_encoding_fallback()
