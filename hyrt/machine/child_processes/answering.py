"""The child's end: answers item by item, request by request."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection
from typing import Any

from hyrt.errors import describe
from hyrt.machine.child_processes.process import BEGIN
from hyrt.machine.this_process.process_settings import prepare_process


def answer_requests(pipe: int) -> None:
    """Answer requests until there are no more, with a message for each thing said; messages are JSON.

    The process is one for all of them, because importing torch costs more than all that is checked. A request
    has `module`, `items`, `arguments`, `barred` (packages that would end this process too, and why), and
    `last_s`.

    Parameters
    ----------
    pipe
        The descriptor of the connection to the parent.
    """
    # What is started from here must not keep it open.
    os.set_inheritable(pipe, False)
    # A crash is reported; its core file would fill the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The parent asks for the stacks of what hangs. The handler needs no interpreter lock: it answers inside a
    # driver too.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # As the command line does, before torch is loaded.
    prepare_process()
    parent = Connection(pipe)
    with contextlib.suppress(EOFError):
        while True:
            _answer(json.loads(parent.recv_bytes()), parent)


class _Barred(MetaPathFinder):
    """Refuses to import what has ended an earlier process: it would end this one, or hang as long again."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._reasons:
            raise ImportError(self._reasons[fullname], name=fullname)


def _answer(request: dict[str, Any], parent: Connection) -> None:
    barred = _Barred(request["barred"])
    sys.meta_path.insert(0, barred)
    for item in request["items"]:

        def write(item: str = item, **event: Any) -> None:
            parent.send_bytes(json.dumps({"item": item, **event}).encode())

        # So that the parent can tell what this item prints from what came before.
        with contextlib.suppress(OSError):
            os.write(2, BEGIN)
        write(event="begun")
        # Only where the parent has gone without a word: else it ends this process long before.
        faulthandler.dump_traceback_later(request["last_s"], exit=True)
        try:
            work = import_module(request["module"]).answer
            work(item, lambda write=write, **said: write(event="said", said=said), **request["arguments"])
        except BaseException as error:
            # What is checked may raise anything, SystemExit too: that is the answer.
            write(event="raised", error=describe(error))
        else:
            write(event="done")
        faulthandler.cancel_dump_traceback_later()
    sys.meta_path.remove(barred)
