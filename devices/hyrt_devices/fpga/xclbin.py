"""Reading of .xclbin files, and the trainer programs that they hold."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from xml.etree import ElementTree

from hyrt_hls.resources import KernelDesign
from hyrt_perfmodel.validation import build_dataclass

from hyrt.errors import DeviceUnavailableError

MAGIC = b"xclbin2\0"
HEADER = struct.Struct("<8si28s256sQQQQHBBHH16s64s16s16sI4x")
SECTION = struct.Struct("<I16s4xQQ")
IP = struct.Struct("<IIQ64s")
BANK = struct.Struct("<BB6xQQ16s")
CLOCK = struct.Struct("<HB5x128s")
EMBEDDED_METADATA, MEM_TOPOLOGY, IP_LAYOUT, CLOCK_FREQ_TOPOLOGY, USER_METADATA = 2, 6, 8, 11, 16
IP_KERNEL = 1
DATA_CLOCK = 1
# DDR3, DDR4, DRAM, HBM; other entries are streams and memories on the chip.
MEMORIES = (0, 1, 2, 6)

_MODES = {0: "hw", 1: "hw", 4: "hw_emu", 5: "sw_emu", 6: "hw_emu"}
# An xclbin has some twenty sections, and none of those read here is large.
_MOST_SECTIONS = 256
_LARGEST_BYTES = 16 << 20
_READ = (EMBEDDED_METADATA, MEM_TOPOLOGY, IP_LAYOUT, CLOCK_FREQ_TOPOLOGY, USER_METADATA)
_DESIGN = ("pes", "mac_rows", "mac_cols", "arena_words")
_REBUILD = "build it again, or copy it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xclbin:
    """An xclbin's contents."""

    path: Path
    """The file."""
    platform: str
    """The shell it was built for, `xilinx_u250_...`."""
    mode: str
    """`hw`, `hw_emu`, `sw_emu`, or a number that is none of these."""
    arguments: Mapping[str, tuple[str, ...]]
    """Names of each kernel's arguments in their order."""
    units: Mapping[str, tuple[str, ...]]
    """Names of each kernel's compute units, in the order of their addresses."""
    clock_hz: float | None
    """Frequency of the kernels' data clock; None where it is not told."""
    memory_bytes: int
    """Size of the memory banks that kernels are linked to; 0 where it is not told."""
    user: bytes | None
    """What the builder attached (the section USER_METADATA), None without."""

    def units_of(self, kernel: str) -> tuple[str, ...]:
        """Compute units of a kernel.

        Raises
        ------
        DeviceUnavailableError
            If there is no such kernel, or no unit of it; naming what there is.
        """
        if kernel not in self.arguments:
            has = ", ".join(self.arguments) or "none"
            raise DeviceUnavailableError(
                f"{self.path}: no kernel {kernel!r} (kernels: {has}): {_remedy(kernel)}"
            )
        if not self.units.get(kernel):
            raise DeviceUnavailableError(
                f"{self.path}: kernel {kernel!r} has no compute unit: {_remedy(kernel)}"
            )
        return self.units[kernel]


def _remedy(kernel: str) -> str:
    return f"link it with --connectivity.nk {kernel}:1, as hyrt's Makefile does"


def read_xclbin(path: Path) -> Xclbin:
    """Read an xclbin's kernels and compute units; the bitstream is left alone.

    Raises
    ------
    DeviceUnavailableError
        If the file cannot be read or is not an xclbin, naming file, section and remedy.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise DeviceUnavailableError(
            f"{path}: the xclbin cannot be read: {error.strerror or error}"
        ) from error


def _read(path: Path, file: BinaryIO) -> Xclbin:
    size_bytes = file.seek(0, 2)
    file.seek(0)
    head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise DeviceUnavailableError(f"{path}: not an xclbin: it does not begin with {MAGIC[:7].decode()}")
    if len(head) < HEADER.size:
        raise DeviceUnavailableError(
            f"{path}: the xclbin ends after {size_bytes} bytes, in its header: {_REBUILD}"
        )
    fields = HEADER.unpack(head)
    length, mode, vbnv, num_sections = fields[5], fields[11], fields[14], fields[17]
    if length > size_bytes:
        raise DeviceUnavailableError(
            f"{path}: the xclbin is truncated: {size_bytes} bytes of the {length} that its header "
            f"states: {_REBUILD}"
        )
    if num_sections > _MOST_SECTIONS:
        raise DeviceUnavailableError(
            f"{path}: the xclbin's header states {num_sections} sections: {_REBUILD}"
        )
    found: dict[int, bytes] = {}
    table = file.read(num_sections * SECTION.size)
    if len(table) < num_sections * SECTION.size:
        raise DeviceUnavailableError(f"{path}: the xclbin is truncated in its table of sections: {_REBUILD}")
    for kind, _, start, room in SECTION.iter_unpack(table):
        if start + room > size_bytes:
            raise DeviceUnavailableError(
                f"{path}: section {kind} of the xclbin, {room} bytes at {start}, is beyond its end: "
                f"{_REBUILD}"
            )
        if kind in _READ:
            if room > _LARGEST_BYTES:
                raise DeviceUnavailableError(
                    f"{path}: section {kind} of the xclbin has {room} bytes: {_REBUILD}"
                )
            file.seek(start)
            found.setdefault(kind, file.read(room))
    if EMBEDDED_METADATA not in found:
        raise DeviceUnavailableError(f"{path}: the xclbin has no section EMBEDDED_METADATA: {_REBUILD}")
    arguments, units = _kernels(path, found[EMBEDDED_METADATA])
    if IP_LAYOUT in found:
        # An emulation in software has none; where there is one, it is what XRT goes by.
        units = _placed(path, found[IP_LAYOUT])
    return Xclbin(
        path=path,
        platform=_text(vbnv),
        mode=_MODES.get(mode, str(mode)),
        arguments=arguments,
        units=units,
        clock_hz=_clock_hz(found.get(CLOCK_FREQ_TOPOLOGY, b"")),
        memory_bytes=_memory_bytes(found.get(MEM_TOPOLOGY, b"")),
        user=found.get(USER_METADATA),
    )


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _kernels(path: Path, xml: bytes) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Kernels with their arguments, and with the instances that were linked."""
    try:
        root = ElementTree.fromstring(xml.rstrip(b"\0"))
    except ElementTree.ParseError as error:
        raise DeviceUnavailableError(
            f"{path}: section EMBEDDED_METADATA is not XML ({error}): {_REBUILD}"
        ) from error
    arguments: dict[str, tuple[str, ...]] = {}
    units: dict[str, tuple[str, ...]] = {}
    for kernel in root.iterfind("platform/device/core/kernel"):
        name = kernel.get("name", "")
        numbered = [(arg.get("id", ""), arg.get("name", "")) for arg in kernel.iterfind("arg")]
        # What the compiler adds for itself has no number.
        ordered = sorted((int(i, 0), text) for i, text in numbered if i[:1].isdigit())
        arguments[name] = tuple(text for _, text in ordered)
        units[name] = tuple(instance.get("name", "") for instance in kernel.iterfind("instance"))
    return arguments, units


def _placed(path: Path, layout: bytes) -> dict[str, tuple[str, ...]]:
    """Compute units of the section IP_LAYOUT, `kernel:unit` each, by address."""
    (count,) = struct.unpack_from("<i", layout) if len(layout) >= 4 else (-1,)
    if not 0 <= count <= (len(layout) - 8) // IP.size:
        raise DeviceUnavailableError(
            f"{path}: section IP_LAYOUT states {count} entries in {len(layout)} bytes: {_REBUILD}"
        )
    units: dict[str, tuple[str, ...]] = {}
    entries = [IP.unpack_from(layout, 8 + i * IP.size) for i in range(count)]
    for kind, _, _, field in sorted(entries, key=lambda entry: entry[2]):
        kernel, _, unit = _text(field).partition(":")
        if kind == IP_KERNEL and unit:
            units[kernel] = (*units.get(kernel, ()), unit)
    return units


def _clock_hz(topology: bytes) -> float | None:
    clocks = _entries(topology, "<h", 2, CLOCK)
    return next((float(mhz) * 1e6 for mhz, kind, _ in clocks if kind == DATA_CLOCK and mhz), None)


def _memory_bytes(topology: bytes) -> int:
    banks = _entries(topology, "<i", 8, BANK)
    return sum(size_kb << 10 for kind, used, size_kb, _, _ in banks if used and kind in MEMORIES)


def _entries(section: bytes, count_format: str, start: int, entry: struct.Struct) -> list[tuple[Any, ...]]:
    """The entries of a section, as many as its count says and as it holds."""
    if len(section) < start:
        return []
    (count,) = struct.unpack_from(count_format, section)
    held = min(count, (len(section) - start) // entry.size)
    return [entry.unpack_from(section, start + i * entry.size) for i in range(held)]


def read_design(xclbin: Xclbin) -> KernelDesign:
    """What the trainer in an xclbin was synthesised with.

    A JSON object with whole numbers `pes`, `mac_rows`, `mac_cols` and `arena_words` (more keys are left
    alone): the section USER_METADATA if there is one, else the file of the xclbin's name that ends in `.json`
    beside it.

    Raises
    ------
    DeviceUnavailableError
        If there is neither, or a number is missing or none that kernels can have, naming the file.
    """
    beside = xclbin.path.with_suffix(".json")
    where = f"{xclbin.path} (USER_METADATA)" if xclbin.user is not None else str(beside)
    try:
        content = beside.read_bytes() if xclbin.user is None else xclbin.user.rstrip(b"\0")
    except FileNotFoundError:
        raise DeviceUnavailableError(
            f"{beside} is missing: it says how {xclbin.path.name} was built ({', '.join(_DESIGN)}). "
            "hyrt's Makefile writes it: copy it beside the xclbin"
        ) from None
    except OSError as error:
        raise DeviceUnavailableError(f"{beside} cannot be read: {error.strerror or error}") from error
    try:
        values: Any = json.loads(content)
    except ValueError as error:
        raise DeviceUnavailableError(f"{where} is not JSON ({error}): {_REBUILD}") from error
    if not isinstance(values, dict):
        raise DeviceUnavailableError(f"{where} is not a JSON object with {', '.join(_DESIGN)}")
    try:
        return build_dataclass(
            KernelDesign, {name: values[name] for name in _DESIGN if name in values}, where, required=_DESIGN
        )
    except ValueError as error:
        raise DeviceUnavailableError(f"{error}: {_REBUILD}") from error


KERNEL = "hyrt_train"


class TrainerPrograms(Protocol):
    """Gives the trainer's kernel objects.

    An implementation may bind arguments behind those of the contract itself.
    """

    @property
    def design(self) -> KernelDesign:
        """What the kernel was built with."""
        ...

    @property
    def num_units(self) -> int:
        """How many compute units there are."""
        ...

    def kernel(self, unit: int) -> Any:
        """A new `pyopencl.Kernel` for one compute unit: no two threads may share an object."""
        ...


class XclbinPrograms:
    """The trainer of an xclbin.

    Parameters
    ----------
    context, device
        The OpenCL context and device; the card is programmed here.
    xclbin
        Read before.

    Raises
    ------
    DeviceUnavailableError
        If the file has no trainer with a compute unit, does not tell its design, or is refused by the card.
    """

    def __init__(self, context: Any, device: Any, xclbin: Xclbin) -> None:
        import pyopencl as cl

        self._path = xclbin.path
        self._units = xclbin.units_of(KERNEL)
        self.design = read_design(xclbin)
        try:
            content = xclbin.path.read_bytes()
            self._program = cl.Program(context, [device], [content])
        except (OSError, cl.Error) as error:
            raise DeviceUnavailableError(
                f"{xclbin.path} (for {xclbin.platform}) cannot be loaded on "
                f"{device.name.strip() or 'the card'}: {error}: build it for the card's "
                "shell; XRT's own words are on stderr"
            ) from error
        # Nothing is built: an xclbin is complete. pyopencl asks every program for its source, and would take
        # XRT's complaint that there is no kernel of that name for an answer.
        self._program._source = ""

    @property
    def num_units(self) -> int:
        return len(self._units)

    def kernel(self, unit: int) -> Any:
        import pyopencl as cl

        name = self._units[unit]
        try:
            # By the bare name XRT may leave units out.
            return cl.Kernel(self._program, f"{KERNEL}:{{{name}}}")
        except cl.Error as error:
            raise DeviceUnavailableError(
                f"{self._path}: XRT does not give the compute unit {KERNEL}:{name}, which the xclbin "
                f"lists: {error}"
            ) from error
