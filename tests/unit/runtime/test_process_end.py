"""The command line ends with its exit code and its output, also beside a thread that is deep in torch."""

import subprocess
import sys
from pathlib import Path

# As the interpreter takes itself apart, `Late` gives the thread the time to come back from its product.
CODE = """
import sys, tempfile, threading, time, torch

class Late:
    sleep = staticmethod(time.sleep)
    def __del__(self):
        self.sleep(1.5)

def multiply():
    matrix = torch.ones(1500, 1500)
    started.set()
    while True:
        torch.mm(matrix, matrix)

from hyrt.cli import main

started = threading.Event()
sys.late = Late()
folder = tempfile.TemporaryDirectory(dir=".")
threading.Thread(target=multiply, daemon=True).start()
started.wait()
print("said")
sys.argv = ["hyrt", "runn"]
main()
"""


def test_a_thread_that_is_left_behind_does_not_abort_the_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == "said\n"
    assert "runn" in ended.stderr
    assert "terminate" not in ended.stderr
    # What is cleared up at the interpreter's end is gone.
    assert list(tmp_path.iterdir()) == []


EXITS = """
import os
from hyrt.runtime.shutdown import report_os_exit

def leave(code, name):
    exec(compile(f"import os\\nos._exit({code})", "/plug/in.py", "exec"), {"__name__": name})

def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

real = os._exit
for code, name in ((0, "acme.model"), (7, "acme"), (0, "hyrt.cli")):
    child = os.fork()
    if child == 0:
        with report_os_exit():
            leave(code, name)
    print(code_of(child))
with report_os_exit():
    child = os.fork()
    if child == 0:
        leave(0, "acme")
    print(code_of(child), os._exit is real)
print(os._exit is real)
"""


def test_code_of_others_ends_no_command_as_if_all_were_done() -> None:
    ended = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60)
    # In a process that a plug-in has forked, as multiprocessing does, it is how that one ends.
    assert ended.stdout.splitlines() == ["1", "7", "0", "0 False", "True"], ended.stderr
    assert ended.stderr.splitlines() == [
        f"error: os._exit({code}) was called at /plug/in.py:2, which ends the command before it is done: "
        "raise an exception there, or run without the package that it belongs to"
        for code in (0, 7)
    ]
