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
from typing import Any, TextIO

from hyrt.doctor.processes.process import BEGIN
from hyrt.errors import describe
from hyrt.machine.process_settings import prepare_process


def answer_requests(requests: TextIO, results: TextIO) -> None:
    """Answer requests, a JSON line each, until there are no more: a JSON line for each thing said.

    The process is one for all of them, because importing torch costs more than all that is checked.

    Parameters
    ----------
    requests
        `module`, `items`, `arguments`, `barred` (packages that would end this process too, and why), and
        `last_s`.
    results
        Where the parent listens.
    """
    # A crash is reported; its core file would fill the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The parent asks for the stacks of what hangs. The handler needs no interpreter lock: it answers inside a
    # driver too.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # As the command line does, before torch is loaded.
    prepare_process()
    for line in requests:
        _answer(json.loads(line), results)


class _Barred(MetaPathFinder):
    """Refuses to import what has ended an earlier process: it would end this one, or hang as long again."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._reasons:
            raise ImportError(self._reasons[fullname], name=fullname)


def _answer(request: dict[str, Any], results: TextIO) -> None:
    barred = _Barred(request["barred"])
    sys.meta_path.insert(0, barred)
    for item in request["items"]:

        def write(item: str = item, **said: Any) -> None:
            results.write(json.dumps({"item": item, **said}) + "\n")
            results.flush()

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
