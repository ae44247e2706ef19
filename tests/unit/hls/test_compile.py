"""Simulations are compiled once for all they are made of, into a writable folder, and refusals say why."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hyrt_hls.simulator import FLAGS, HEADERS, compile_library
from unit.hls.simulated_streams import FOLDER, MISSING, library

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HYRT_HLS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Answers with what header, macro and mode say."""
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "outer.h").write_text('#include "inner.h"\n#include <cstdint>\n')
    (tmp_path / "headers" / "inner.h").write_text("#define FROM_HEADER 1000\n")
    path = tmp_path / "answer.cpp"
    path.write_text(
        '#include "headers/outer.h"\n'
        "#ifndef ADDED\n#define ADDED 0\n#endif\n"
        "#ifdef HYRT_BOUNDED\n#define MODE 10000\n#else\n#define MODE 0\n#endif\n"
        'extern "C" int answer() { return FROM_HEADER + ADDED + MODE; }\n'
    )
    return path


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_all_that_a_library_is_made_of_names_it(source: Path, cache: Path) -> None:
    plain = compile_library([source])
    assert plain.parent == cache
    assert answer(plain) == 1000
    stamp = plain.stat()
    assert compile_library([str(source)], defines={}) == plain
    assert plain.stat() == stamp, "it was compiled again"

    assert answer(compile_library([source], defines={"ADDED": 7})) == 1007
    assert answer(compile_library([source], defines={"ADDED": "(3*4)"}, bounded=True)) == 11012
    # A header's header, changed to text of the same length.
    (source.parent / "headers" / "inner.h").write_text("#define FROM_HEADER 2000\n")
    changed = compile_library([source])
    assert changed != plain
    assert answer(changed) == 2000
    (source.parent / "headers" / "inner.h").write_text("#define FROM_HEADER 1000\n")
    assert compile_library([source]) == plain
    assert len(list(cache.iterdir())) == 4


def test_folders_of_headers_come_before_the_packages(tmp_path: Path) -> None:
    source = tmp_path / "which.cpp"
    source.write_text(
        '#include "hls_stream.h"\n#ifndef OTHER\n#define OTHER 0\n#endif\n'
        'extern "C" int answer() { return OTHER; }\n'
    )
    other = tmp_path / "other"
    other.mkdir()
    ours = compile_library([source], include=[other])
    assert answer(ours) == 0
    # One that appears later in a nearer folder counts.
    (other / "hls_stream.h").write_text("#define OTHER 5\n")
    assert answer(compile_library([source], include=[other])) == 5


def test_several_sources_are_one_library(source: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.cpp"
    more.write_text('extern "C" int answer();\nextern "C" int twice() { return 2 * answer(); }\n')
    assert ctypes.CDLL(str(compile_library([more, source]))).twice() == 2000


def test_what_the_compiler_says_is_told_and_nothing_stays(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int first = undefined_name;\n")
    with pytest.raises(
        ValueError, match=r"(?s)g\+\+ cannot compile .*wrong\.cpp.*wrong\.cpp:1:13: error: .*undefined_name"
    ):
        compile_library([source])
    assert list(cache.iterdir()) == []


def test_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"needs g\+\+, which is not on PATH: install it"):
        compile_library([source])


def test_a_compiler_that_does_not_work(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="does not work: it is broken"):
        compile_library([source])


@pytest.mark.parametrize("name", ["two words", "1st", "", "A=1 -o"])
def test_a_macros_name(source: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid macro name"):
        compile_library([source], defines={name: 1})


def test_what_cannot_be_read_or_followed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to compile"):
        compile_library([])
    with pytest.raises(ValueError, match=r"absent\.cpp cannot be compiled: No such file"):
        compile_library([tmp_path / "absent.cpp"])
    source = tmp_path / "hidden.cpp"
    source.write_text('#define HEADER "x.h"\n#include HEADER\n')
    with pytest.raises(ValueError, match=r"hidden\.cpp includes 'HEADER': name the header itself"):
        compile_library([source])


_IN_A_PROCESS = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("error", RuntimeWarning)
from hyrt_hls.simulator import compile_library
try:
    print(compile_library([sys.argv[2]]))
except RuntimeWarning as warning:
    warnings.simplefilter("ignore", RuntimeWarning)
    print(compile_library([sys.argv[2]]), compile_library([sys.argv[2]]), warning, sep="\\n")
import ctypes
print(ctypes.CDLL(str(compile_library([sys.argv[2]]))).answer())
"""


def _started(source: Path, stderr: int | None = None) -> subprocess.Popen[str]:
    command: Sequence[str] = [sys.executable, "-c", _IN_A_PROCESS, str(HEADERS.parents[1]), str(source)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def test_two_processes_at_once(source: Path, cache: Path) -> None:
    processes = [_started(source) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == "1000"
    # No partial file stays beside it.
    assert [str(path) for path in cache.iterdir()] == [outputs[0][0]]


@pytest.mark.parametrize("left", [0, 3_000, 10_000, -1])
def test_a_damaged_library_is_compiled_anew(source: Path, cache: Path, left: int) -> None:
    """Loaded as it is, one that was cut short ends the process with SIGBUS."""
    whole = compile_library([source])
    content = whole.read_bytes()
    whole.write_bytes(content[:left] if left >= 0 else content[:500] + b"?" + content[501:])
    with pytest.warns(RuntimeWarning, match=re.escape(f"the compiled simulation {whole} is damaged")):
        again = compile_library([source])
    assert list(cache.iterdir()) == [again]
    assert again.read_bytes() == content
    assert answer(again) == 1000


def test_what_dead_compilations_left_is_removed(source: Path, cache: Path) -> None:
    cache.mkdir()
    old, young = cache / ".answer-0-abc.so", cache / ".answer-0-abd.so"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, times=(0, time.time() - 7200))
    library = compile_library([source])
    # The young one may be being written.
    assert sorted(cache.iterdir()) == sorted([young, library])


_NEVER_ENDS = """#!/bin/sh
case "$*" in *-###*) exit 0;; esac
for last; do :; done
echo half > "$last"
sleep 1000 &
echo $! > "$last.child"
wait
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_compiler_ends_with_its_caller(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """However that ends: the compiler's own children too, and nothing stays in the cache."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "g++"
    compiler.write_text(_NEVER_ENDS)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    process = _started(source, stderr=subprocess.DEVNULL)
    child = int(_eventually(lambda: "".join(path.read_text() for path in cache.glob("*.child"))))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    _eventually(lambda: not _is_running(child))
    _eventually(lambda: [path.suffix for path in cache.iterdir()] == [".child"])


def _eventually(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


def _is_running(number: int) -> bool:
    """A process that nobody has asked about is there, as a zombie."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_cache_that_cannot_be_written(source: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    process = _started(source)
    library, again, warning, answered = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    assert library == again
    assert answered == "1000"
    assert "set HYRT_HLS_CACHE_DIR to a writable folder" in warning
    assert not Path(library).parent.exists(), "the temporary folder outlived its process"


def test_libraries_of_two_modes_share_nothing_in_one_process() -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    compiled = library(True)._name
    symbols = subprocess.run(["nm", "-D", "-C", compiled], capture_output=True, text=True, check=True).stdout
    # A unique symbol (u) is one for the whole process, whatever its mode.
    assert [line for line in symbols.splitlines() if " u " in line] == []
    assert "hyrt::current_process" in symbols


@pytest.mark.parametrize("mode", [[], ["-DHYRT_BOUNDED"]])
def test_the_headers_compile_without_a_warning(mode: list[str]) -> None:
    command = ["g++", *FLAGS, *mode, "-Werror", "-Wpedantic", "-Wshadow", "-fsyntax-only", f"-I{HEADERS}"]
    result = subprocess.run([*command, str(FOLDER / "streams.cpp")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_an_environment_without_a_cache_dir_uses_the_users(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HYRT_HLS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_library([source]).parent == tmp_path / "user" / "hyrt" / "hls"


_VENDORS_STREAM = """
#include <deque>
namespace hls {
template <typename T> struct stream {
    std::deque<T> values;
    void write(const T &value) { values.push_back(value); }
    T read() { T value = values.front(); values.pop_front(); return value; }
};
}
"""


def test_synthesis_sees_plain_calls_and_the_vendors_streams(tmp_path: Path) -> None:
    (tmp_path / "hls_stream.h").write_text(_VENDORS_STREAM)
    kernel = FOLDER / "synthesised.cpp"
    # As in the Makefile: our folder first, the vendor's after it.
    command = [
        "g++",
        *FLAGS,
        "-Werror",
        "-D__SYNTHESIS__",
        f"-I{HEADERS}",
        "-idirafter",
        str(tmp_path),
        str(kernel),
    ]
    seen = subprocess.run([*command, "-E", "-P"], capture_output=True, text=True, check=True).stdout
    body = " ".join(seen[seen.index("void double_all") :].split())
    assert "hyrt" not in seen
    assert "#pragma HLS DATAFLOW" in body
    assert "#pragma HLS UNROLL twice(count / 2, lanes[i], outs[i]);" in body
    assert (
        body.index("load(in, count, lanes);") < body.index("twice(") < body.index("store(count, outs, out);")
    )

    subprocess.run([*command, "-o", tmp_path / "plain.so"], check=True)
    for compiled in (
        tmp_path / "plain.so",
        compile_library([kernel]),
        compile_library([kernel], bounded=True),
    ):
        out = (ctypes.c_int * 10)()
        ctypes.CDLL(str(compiled)).double_all((ctypes.c_int * 10)(*range(10)), 10, out)
        assert list(out) == list(range(0, 20, 2))
