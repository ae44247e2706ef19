"""Paths in lines of text, against what a shell makes of them."""

from __future__ import annotations

import os
import subprocess

import pytest

from hyrt.report.terminal.printed_lines import shell_word


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
    word = shell_word(os.fsdecode(name))
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == name


def test_plain_paths_stay_as_they_are() -> None:
    assert shell_word("runs/a-1") == "runs/a-1"
