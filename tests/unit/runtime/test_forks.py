"""Processes that are forked before and after torch's threads have worked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import os
import subprocess
import sys
import traceback
import hyrt
from hyrt.errors import ConfigError, DataError
from hyrt.runtime.process_setup import forked_after_threads

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

print(child(forked_after_threads), child(refused))
hyrt.train("synthetic:tiny", train={"epochs": 1})
nested = child(lambda: child(forked_after_threads))
print(forked_after_threads(), child(forked_after_threads), nested, child(refused))
ask = (
    "import sys; from hyrt.runtime.process_setup import forked_after_threads; "
    "sys.exit(forked_after_threads())"
)
print(child(lambda: subprocess.run([sys.executable, "-c", ask]).returncode))
"""


def test_a_process_knows_whether_it_was_forked_late() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["0 2", "False 1 1 1", "0"], done.stderr


IMPORTS = """
import os
import sys
import threading
import types
import hyrt

# As hyrt does in a function that needs what it has not needed before.
room = types.ModuleType("hyrt.room")
exec("def work():\\n    import slow_module", vars(room))
thread = threading.Thread(target=room.work)
thread.start()
while not sys.modules.get("slow_module"):
    pass
if (child := os.fork()) == 0:
    # Where it is half imported, this waits for a thread that is not here.
    import faulthandler
    faulthandler.dump_traceback_later(20, exit=True)
    import slow_module
    os._exit(5 * slow_module.is_whole)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


COMPILES = """
import os
import threading
import hyrt
from numba.core.compiler_lock import global_compiler_lock

held = threading.Event()

@global_compiler_lock
def compiled():
    held.set()
    threading.Event().wait(1)

threading.Thread(target=compiled).start()
held.wait()
if (child := os.fork()) == 0:
    import faulthandler
    faulthandler.dump_traceback_later(20, exit=True)
    with global_compiler_lock:
        os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_what_numba_compiles_in_another_thread() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["5"], done.stderr


def test_a_fork_waits_for_what_hyrt_imports_in_another_thread(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(1)\nis_whole = True\n")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["5"], done.stderr


IMPORTED = """
import os
import sys
import threading
import types
import hyrt

room = sys.modules["hyrt.room"] = types.ModuleType("hyrt.room")
room.entered, room.forked = threading.Event(), threading.Event()
exec("def work():\\n    entered.set()\\n    return forked.wait(30)", vars(room))
found = []
thread = threading.Thread(target=lambda: found.append(__import__("script").result))
thread.start()
room.entered.wait()
if (child := os.fork()) == 0:
    os._exit(5)
room.forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found)
"""


def test_a_fork_does_not_wait_for_hyrt_that_works_in_what_others_import(tmp_path: Path) -> None:
    """As where a script that trains is imported: nothing that a child needs of hyrt is locked."""
    (tmp_path / "script.py").write_text("import sys\nresult = sys.modules['hyrt.room'].work()\n")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["5 [True]"], done.stderr
