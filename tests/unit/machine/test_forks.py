"""Processes that are forked before and after torch's threads have worked."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
import subprocess
import sys
import traceback
import hyrt
from hyrt.errors import ConfigError, DataError
from hyrt.machine.this_process.forks import was_forked_late

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(work())
        except BaseException:
            traceback.print_exc()
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def refused():
    try:
        hyrt.train("nothing.npz")
    except ConfigError as error:
        return int("get_context('spawn')" in str(error))
    except DataError as error:
        return 2 * ("nothing.npz: no such file" in str(error))
    return 3

print(child(was_forked_late), child(refused))
hyrt.train("synthetic:tiny", train={"epochs": 1})
print(was_forked_late(), child(was_forked_late), child(lambda: child(was_forked_late)), child(refused))
ask = "import sys; from hyrt.machine.this_process.forks import was_forked_late; sys.exit(was_forked_late())"
print(child(lambda: subprocess.run([sys.executable, "-c", ask]).returncode))
"""


def test_a_process_knows_whether_it_was_forked_late() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["0 2", "False 1 1 1", "0"], done.stderr
