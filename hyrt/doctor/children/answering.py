"""The child's end: answers item by item, each within a time limit."""

from __future__ import annotations

import faulthandler
import json
import resource
from importlib import import_module
from typing import Any, TextIO

from hyrt.errors import describe


def answer_all(results: TextIO, request: dict[str, Any]) -> None:
    """Answer every item of a request, a JSON line for each thing said.

    An item that takes too long ends the process, with the stacks of its threads on standard error.

    Parameters
    ----------
    results
        Where the parent listens.
    request
        `module`, `items`, `limit_s` of each item, and `arguments`.
    """
    # A crash is reported; its core file would fill the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for item in request["items"]:

        def write(item: str = item, **said: Any) -> None:
            results.write(json.dumps({"item": item, **said}) + "\n")
            results.flush()

        write(event="begun")
        # The watchdog needs no interpreter lock: it also ends what hangs inside a driver.
        faulthandler.dump_traceback_later(request["limit_s"], exit=True)
        try:
            work = import_module(request["module"]).answer
            work(item, lambda write=write, **said: write(event="said", said=said), **request["arguments"])
        except BaseException as error:
            # What is checked may raise anything, SystemExit too: that is the answer.
            write(event="raised", error=describe(error))
        else:
            write(event="done")
        faulthandler.cancel_dump_traceback_later()
