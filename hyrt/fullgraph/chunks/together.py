"""Devices that compute columns of the same chunks at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels


class Entered(Protocol):
    """What a device's calls run in: `ChunkRoom.errors`."""

    def __call__(self) -> AbstractContextManager[None]: ...


class PartnerLost(Exception):
    """What a device waits for will not come, since another one has failed."""


class MemberLost(Exception):
    """One of several devices has failed.

    Parameters
    ----------
    member
        Its place among them.
    error
        What it raised.
    """

    def __init__(self, member: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.member = member
        self.error = error


def run_together(parts: Sequence[Callable[[], None]]) -> None:
    """Have each of several devices do its part in a thread of its own, and wait for all.

    Raises
    ------
    MemberLost
        If one has failed; all others have ended, too.
    DeviceOutOfMemory
        If one was out of memory, and none was lost.
    """
    errors: dict[int, BaseException] = {}

    def run(member: int) -> None:
        try:
            parts[member]()
        except BaseException as error:
            errors[member] = error

    threads = [
        # One that hangs must not keep the process alive.
        threading.Thread(target=run, args=(member,), name=f"hyrt.columns.{member}", daemon=True)
        for member in range(len(parts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Who has only waited for one that failed is not lost.
    errors = {member: error for member, error in errors.items() if not isinstance(error, PartnerLost)}
    for member, error in sorted(errors.items()):
        if not isinstance(error, DeviceOutOfMemory):
            raise MemberLost(member, error) from error
    for _, error in sorted(errors.items()):
        raise error


class Together:
    """Runs parts of a step on several devices, each in a thread, and waits for all; on one, in this thread.

    Parameters
    ----------
    kernels
        What computes on each device.
    entered
        For each, what its calls run in.
    """

    def __init__(self, kernels: Sequence[ChunkKernels], entered: Sequence[Entered]) -> None:
        self.kernels = list(kernels)
        self._entered = list(entered)

    def run(
        self,
        part: Callable[[int, ChunkKernels], None],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Have every device do its part, which is given its number and kernels.

        Where there are several, what they have copied to the host is there afterwards.

        Parameters
        ----------
        part
            What each does.
        around
            Makes a context that learns of whatever fails for one of several.

        Raises
        ------
        MemberLost
            If one of several has failed; all others have ended, too.
        DeviceOutOfMemory
            If one was out of memory, and none was lost.
        """
        if len(self.kernels) == 1:
            with self._entered[0]():
                part(0, self.kernels[0])
            return

        def run(member: int) -> None:
            with around(), self._entered[member]():
                part(member, self.kernels[member])
                self.kernels[member].wait()

        run_together([partial(run, member) for member in range(len(self.kernels))])

    def wait(self) -> None:
        """Until what devices have copied to the host is there."""
        if len(self.kernels) == 1:
            with self._entered[0]():
                self.kernels[0].wait()

    def end(self) -> None:
        """Wait for all that was begun."""

        def wait(_: int, kernels: ChunkKernels) -> None:
            kernels.name("")
            kernels.wait()

        self.run(wait)
