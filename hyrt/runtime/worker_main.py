"""Main loop of the isolated worker process, which answers requests item by item."""

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

from hyrt.errors import describe_error
from hyrt.runtime.isolated_worker import ITEM_START
from hyrt.runtime.process_setup import prepare_process


def answer_requests(pipe: int) -> None:
    """Answer requests, JSON messages on the file descriptor `pipe`, until the parent closes it.

    One process serves all requests, because importing torch costs more than all checks together. A request
    has `module`, `items`, `arguments`, `barred` (package to reason: packages that would crash or hang this
    process too) and `last_s` (time limit per item).
    """
    # Child processes of this process must not keep the pipe open.
    os.set_inheritable(pipe, False)
    # The parent reports a crash; a core file would only fill the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The parent requests the stacks of a hanging item with SIGUSR1. faulthandler's C handler needs no
    # interpreter lock, so it works inside a driver too.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # This must precede the import of torch, as in the command line.
    prepare_process()
    parent = Connection(pipe)
    with contextlib.suppress(EOFError):
        while True:
            _answer(json.loads(parent.recv_bytes()), parent)


class _ImportBlocker(MetaPathFinder):
    """Import hook that refuses packages that crashed or hung an earlier worker process."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._reasons:
            raise ImportError(self._reasons[fullname], name=fullname)


def _answer(request: dict[str, Any], parent: Connection) -> None:
    blocker = _ImportBlocker(request["barred"])
    sys.meta_path.insert(0, blocker)
    for item in request["items"]:

        def write(item: str = item, **event: Any) -> None:
            parent.send_bytes(json.dumps({"item": item, **event}).encode())

        # Marks where this item's output begins.
        with contextlib.suppress(OSError):
            os.write(2, ITEM_START)
        write(event="begun")
        # Takes effect only if the parent has died; otherwise the parent ends this process much earlier.
        faulthandler.dump_traceback_later(request["last_s"], exit=True)
        try:
            module, _, name = request["module"].partition(":")
            answer = getattr(import_module(module), name or "answer")
            answer(
                item, lambda write=write, **message: write(event="said", said=message), **request["arguments"]
            )
        except BaseException as error:
            # The checked code may raise anything, including SystemExit; the exception is the answer.
            write(event="raised", error=describe_error(error))
        else:
            write(event="done")
        faulthandler.cancel_dump_traceback_later()
    sys.meta_path.remove(blocker)
