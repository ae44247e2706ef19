"""Group of devices that compute columns of the same chunks at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels


class Entered(Protocol):
    """Factory of the context of a device's calls: `ChunkRoom.errors`."""

    def __call__(self) -> AbstractContextManager[None]: ...


class PartnerLost(Exception):
    """Raised in a device that waits for another one that has failed."""


class MemberLost(Exception):
    """Failure of one device of a group.

    Parameters
    ----------
    member
        Its index in the group.
    error
        The exception that it raised.
    """

    def __init__(self, member: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.member = member
        self.error = error


def run_together(parts: Sequence[Callable[[], None]]) -> None:
    """Run a function per device, each in a thread, and wait for all of them.

    Raises
    ------
    MemberLost
        If one has failed; the others have ended as well.
    DeviceOutOfMemory
        If one was out of memory, and none has failed otherwise.
    """
    errors: dict[int, BaseException] = {}

    def run(member: int) -> None:
        try:
            parts[member]()
        except BaseException as error:
            errors[member] = error

    threads = [
        # A hanging device must not keep the process alive.
        threading.Thread(target=run, args=(member,), name=f"hyrt.columns.{member}", daemon=True)
        for member in range(len(parts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A device that only waited for a failed one has not failed itself.
    errors = {member: error for member, error in errors.items() if not isinstance(error, PartnerLost)}
    for member, error in sorted(errors.items()):
        if not isinstance(error, DeviceOutOfMemory):
            raise MemberLost(member, error) from error
    for _, error in sorted(errors.items()):
        raise error


class Together:
    """Group of devices that run parts of a step in a thread each; a single device runs in the calling thread.

    Parameters
    ----------
    kernels
        The kernels of each device.
    entered
        The context factory of each device.
    """

    def __init__(self, kernels: Sequence[ChunkKernels], entered: Sequence[Entered]) -> None:
        self.kernels = list(kernels)
        self._entered = list(entered)

    def run(
        self,
        part: Callable[[int, ChunkKernels], None],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Run a function on every device, with the device's index and kernels.

        With several devices, their copies to the host are complete afterwards.

        Parameters
        ----------
        part
            The function.
        around
            Creates a context that observes failures, if there are several devices.

        Raises
        ------
        MemberLost
            If one of several has failed; the others have ended as well.
        DeviceOutOfMemory
            If one was out of memory, and none has failed otherwise.
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
        """Wait until the devices' copies to the host are complete."""
        if len(self.kernels) == 1:
            with self._entered[0]():
                self.kernels[0].wait()

    def end(self) -> None:
        """Wait for all submitted work."""

        def wait(_: int, kernels: ChunkKernels) -> None:
            kernels.name("")
            kernels.wait()

        self.run(wait)
