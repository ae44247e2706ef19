"""Reader of .xclbin files and of their trainer programs."""

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
# Memory types of DDR3, DDR4, DRAM and HBM; other entries are streams and on-chip memories.
MEMORIES = (0, 1, 2, 6)

_MODES = {0: "hw", 1: "hw", 4: "hw_emu", 5: "sw_emu", 6: "hw_emu"}
# An xclbin has about twenty sections, and those that are read here are small.
_MAX_SECTIONS = 256
_LARGEST_BYTES = 16 << 20
_READ = (EMBEDDED_METADATA, MEM_TOPOLOGY, IP_LAYOUT, CLOCK_FREQ_TOPOLOGY, USER_METADATA)
_DESIGN = ("pes", "mac_rows", "mac_cols", "arena_words")
_REBUILD = "rebuild it, or copy it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xclbin:
    """Contents of an xclbin, without the bitstream."""

    path: Path
    platform: str
    """Name of the shell for which the xclbin was built, such as `xilinx_u250_...`."""
    mode: str
    """Execution mode: `hw`, `hw_emu`, `sw_emu`, or the number of an unknown mode."""
    arguments: Mapping[str, tuple[str, ...]]
    """Argument names of each kernel, in order."""
    units: Mapping[str, tuple[str, ...]]
    """Compute unit names of each kernel, in the order of their addresses."""
    clock_hz: float | None
    """Frequency of the kernels' data clock, or None if it is not stated."""
    memory_bytes: int
    """Total size of the memory banks to which kernels are linked, or 0 if it is not stated."""
    user: bytes | None
    """Metadata that the builder attached (section USER_METADATA), or None."""

    def units_of(self, kernel: str) -> tuple[str, ...]:
        """Return the names of a kernel's compute units.

        Raises DeviceUnavailableError if the kernel does not exist (the message lists the kernels that do) or
        has no compute unit.
        """
        if kernel not in self.arguments:
            has = ", ".join(self.arguments) or "none"
            raise DeviceUnavailableError(
                f"{self.path} has no kernel {kernel!r} (kernels: {has}): {_remedy(kernel)}"
            )
        if not self.units.get(kernel):
            raise DeviceUnavailableError(
                f"kernel {kernel!r} of {self.path} has no compute unit: {_remedy(kernel)}"
            )
        return self.units[kernel]


def _remedy(kernel: str) -> str:
    return f"link it with --connectivity.nk {kernel}:1, as hyrt's Makefile does"


def read_xclbin(path: Path) -> Xclbin:
    """Read the kernels and compute units of an xclbin, without its bitstream.

    Raises DeviceUnavailableError, with section and remedy, if the file cannot be read or is not an xclbin.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise DeviceUnavailableError(
            f"the xclbin {path} cannot be read: {error.strerror or error}"
        ) from error


def _read(path: Path, file: BinaryIO) -> Xclbin:
    size_bytes = file.seek(0, 2)
    file.seek(0)
    head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise DeviceUnavailableError(
            f"{path} is not an xclbin, because it does not begin with {MAGIC[:7].decode()}: {_REBUILD}"
        )
    if len(head) < HEADER.size:
        raise DeviceUnavailableError(
            f"the xclbin {path} ends after {size_bytes} bytes, within its header: {_REBUILD}"
        )
    fields = HEADER.unpack(head)
    length, mode, vbnv, num_sections = fields[5], fields[11], fields[14], fields[17]
    if length > size_bytes:
        raise DeviceUnavailableError(
            f"the xclbin {path} is truncated to {size_bytes} of the {length} bytes that its header "
            f"states: {_REBUILD}"
        )
    if num_sections > _MAX_SECTIONS:
        raise DeviceUnavailableError(
            f"the header of the xclbin {path} states {num_sections} sections, but the maximum is "
            f"{_MAX_SECTIONS}: {_REBUILD}"
        )
    found: dict[int, bytes] = {}
    table = file.read(num_sections * SECTION.size)
    if len(table) < num_sections * SECTION.size:
        raise DeviceUnavailableError(f"the xclbin {path} is truncated within its section table: {_REBUILD}")
    for kind, _, start, section_bytes in SECTION.iter_unpack(table):
        if start + section_bytes > size_bytes:
            raise DeviceUnavailableError(
                f"section {kind} of the xclbin {path}, {section_bytes} bytes at {start}, is beyond its end: "
                f"{_REBUILD}"
            )
        if kind in _READ:
            if section_bytes > _LARGEST_BYTES:
                raise DeviceUnavailableError(
                    f"section {kind} of the xclbin {path} has {section_bytes} bytes, but the maximum is "
                    f"{_LARGEST_BYTES}: {_REBUILD}"
                )
            file.seek(start)
            found.setdefault(kind, file.read(section_bytes))
    if EMBEDDED_METADATA not in found:
        raise DeviceUnavailableError(f"the xclbin {path} has no section EMBEDDED_METADATA: {_REBUILD}")
    arguments, units = _kernels(path, found[EMBEDDED_METADATA])
    if IP_LAYOUT in found:
        # Software emulation has no IP_LAYOUT. If the section exists, XRT uses it.
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
    """Return the argument names and the linked instances of each kernel."""
    try:
        root = ElementTree.fromstring(xml.rstrip(b"\0"))
    except ElementTree.ParseError as error:
        raise DeviceUnavailableError(
            f"section EMBEDDED_METADATA of the xclbin {path} is not XML ({error}): {_REBUILD}"
        ) from error
    arguments: dict[str, tuple[str, ...]] = {}
    units: dict[str, tuple[str, ...]] = {}
    for kernel in root.iterfind("platform/device/core/kernel"):
        name = kernel.get("name", "")
        numbered = [(arg.get("id", ""), arg.get("name", "")) for arg in kernel.iterfind("arg")]
        # Skip arguments without a number, which the compiler adds.
        ordered = sorted((int(i, 0), text) for i, text in numbered if i[:1].isdigit())
        arguments[name] = tuple(text for _, text in ordered)
        units[name] = tuple(instance.get("name", "") for instance in kernel.iterfind("instance"))
    return arguments, units


def _placed(path: Path, layout: bytes) -> dict[str, tuple[str, ...]]:
    """Return the compute units (`kernel:unit`) in section IP_LAYOUT by kernel, ordered by address."""
    (count,) = struct.unpack_from("<i", layout) if len(layout) >= 4 else (-1,)
    if not 0 <= count <= (len(layout) - 8) // IP.size:
        raise DeviceUnavailableError(
            f"section IP_LAYOUT of the xclbin {path} states {count} entries, but has {len(layout)} bytes: "
            f"{_REBUILD}"
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
    """Return the entries of a section: the number that it states, or fewer if it is too short."""
    if len(section) < start:
        return []
    (count,) = struct.unpack_from(count_format, section)
    held = min(count, (len(section) - start) // entry.size)
    return [entry.unpack_from(section, start + i * entry.size) for i in range(held)]


def read_design(xclbin: Xclbin) -> KernelDesign:
    """Read the design with which the trainer in an xclbin was synthesised.

    The design is a JSON object with the integers `pes`, `mac_rows`, `mac_cols` and `arena_words` (other keys
    are ignored). It is read from the section USER_METADATA if there is one, otherwise from the `.json` file
    with the xclbin's name in the same folder. Raises DeviceUnavailableError if both are missing, or a number
    is missing or invalid.
    """
    json_path = xclbin.path.with_suffix(".json")
    where = f"{xclbin.path} (USER_METADATA)" if xclbin.user is not None else str(json_path)
    try:
        content = json_path.read_bytes() if xclbin.user is None else xclbin.user.rstrip(b"\0")
    except FileNotFoundError:
        raise DeviceUnavailableError(
            f"{json_path}, which states how {xclbin.path.name} was built ({', '.join(_DESIGN)}), is missing: "
            "copy the file that hyrt's Makefile wrote next to the xclbin"
        ) from None
    except OSError as error:
        raise DeviceUnavailableError(f"{json_path} cannot be read: {error.strerror or error}") from error
    try:
        values: Any = json.loads(content)
    except ValueError as error:
        raise DeviceUnavailableError(f"{where} is not JSON ({error}): {_REBUILD}") from error
    if not isinstance(values, dict):
        raise DeviceUnavailableError(f"{where} is not a JSON object with {', '.join(_DESIGN)}: {_REBUILD}")
    try:
        return build_dataclass(
            KernelDesign, {name: values[name] for name in _DESIGN if name in values}, where, required=_DESIGN
        )
    except ValueError as error:
        raise DeviceUnavailableError(f"{error}: {_REBUILD}") from error


KERNEL = "hyrt_train"


class TrainerPrograms(Protocol):
    """Provider of kernel objects for the trainer.

    An implementation may bind additional arguments after those of the kernel interface.
    """

    @property
    def design(self) -> KernelDesign:
        """Design with which the kernel was built."""
        ...

    @property
    def num_units(self) -> int:
        """Number of compute units."""
        ...

    def kernel(self, unit: int) -> Any:
        """Return a new `pyopencl.Kernel` for one compute unit. Threads must not share kernel objects."""
        ...


class XclbinPrograms:
    """Trainer programs of an xclbin, with which the constructor programs the card.

    Raises DeviceUnavailableError if the file has no trainer with a compute unit, does not state its design,
    or is rejected by the card.
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
                f"{device.name.strip() or 'the card'} ({error}): build it for the card's shell, and see "
                "XRT's message on stderr"
            ) from error
        # An xclbin is complete and needs no build. But pyopencl queries the source of every program, and
        # would return XRT's error about a missing kernel as the result.
        self._program._source = ""

    @property
    def num_units(self) -> int:
        return len(self._units)

    def kernel(self, unit: int) -> Any:
        import pyopencl as cl

        name = self._units[unit]
        try:
            # With the plain name of the kernel, XRT may omit units.
            return cl.Kernel(self._program, f"{KERNEL}:{{{name}}}")
        except cl.Error as error:
            raise DeviceUnavailableError(
                f"XRT does not provide the compute unit {KERNEL}:{name} that {self._path} lists "
                f"({error}): {_REBUILD}"
            ) from error
