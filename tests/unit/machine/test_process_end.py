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
