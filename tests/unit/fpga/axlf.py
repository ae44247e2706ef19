"""Writes xclbins with kernels' metadata but no bitstream: enough for XRT's runtime where there is no card."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

KERNEL = "hyrt_train"
ARGUMENTS = (
    *("features", "edges", "weights", "labels", "target_weights", "vertices", "task"),
    *("scores", "gradients", "results"),
)
DESIGN = {"pes": 4, "mac_rows": 8, "mac_cols": 16, "arena_words": 4096}


def metadata(kernel: str, units: Sequence[str], arguments: Sequence[str], platform: str) -> bytes:
    """The section EMBEDDED_METADATA: every argument a global pointer on a port of its own."""
    ports = "".join(
        f'<port name="M_AXI_{i}" mode="master" range="0xFFFFFFFFFFFFFFFF" dataWidth="512" '
        'portType="addressable" base="0x0"/>'
        for i in range(len(arguments))
    )
    args = "".join(
        f'<arg name={quoteattr(name)} addressQualifier="1" id="{i}" port="M_AXI_{i}" size="0x8" '
        f'offset="{0x10 + 12 * i:#x}" hostOffset="0x0" hostSize="0x8" type="void*"/>'
        for i, name in enumerate(arguments)
    )
    instances = "".join(
        f'<instance name={quoteattr(unit)}><addrRemap base="{_address(i):#x}" range="0x10000" '
        'port="S_AXI_CONTROL"/></instance>'
        for i, unit in enumerate(units)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><project name="trainer"><platform vendor="xilinx" '
        f'boardid="u250" name={quoteattr(platform)}><device name="fpga0">'
        '<core name="OCL_REGION_0" target="bitstream" type="clc_region">'
        f'<kernel name={quoteattr(kernel)} language="c" type="pl" vlnv="xilinx.com:hls:{kernel}:1.0" '
        'preferredWorkGroupSizeMultiple="0" workGroupSize="1" interrupt="true" '
        'hwControlProtocol="ap_ctrl_hs">'
        f'<module name="OCL_REGION_0"/>{ports}<port name="S_AXI_CONTROL" mode="slave" range="0x1000" '
        f'dataWidth="32" portType="addressable" base="0x0"/>{args}<compileWorkGroupSize x="1" y="1" z="1"/>'
        f'<maxWorkGroupSize x="1" y="1" z="1"/>{instances}</kernel></core></device></platform></project>'
    ).encode()


def _address(unit: int) -> int:
    return 0x1800000 + 0x10000 * unit


def ip_layout(kernel: str, units: Sequence[str]) -> bytes:
    """The section IP_LAYOUT."""
    entries = [
        struct.pack("<IIQ64s", 1, 1 | (i << 1), _address(i), f"{kernel}:{unit}".encode())
        for i, unit in enumerate(units)
    ]
    return struct.pack("<i4x", len(units)) + b"".join(entries)


def mem_topology(banks: int) -> bytes:
    """The section MEM_TOPOLOGY: banks of DDR4, 16 GiB each."""
    size_kb = 16 << 20
    entries = [
        struct.pack("<BB6xQQ16s", 1, 1, size_kb, i * (size_kb << 10), f"DDR[{i}]".encode())
        for i in range(banks)
    ]
    return struct.pack("<i4x", banks) + b"".join(entries)


def connectivity(units: int, arguments: int, banks: int) -> bytes:
    """The section CONNECTIVITY: all of a unit's arguments in one bank, units in banks in turn."""
    entries = [
        struct.pack("<iii", argument, unit, unit % banks)
        for unit in range(units)
        for argument in range(arguments)
    ]
    return struct.pack("<i", len(entries)) + b"".join(entries)


def clocks(mhz: int) -> bytes:
    """The section CLOCK_FREQ_TOPOLOGY."""
    entries = [
        struct.pack("<HB5x128s", rate, kind, name)
        for rate, kind, name in ((50, 3, b"SYSTEM_CLK"), (mhz, 1, b"DATA_CLK"), (500, 2, b"KERNEL_CLK"))
    ]
    return struct.pack("<h", len(entries)) + b"".join(entries)


def container(sections: Sequence[tuple[int, bytes]], *, platform: str, mode: int = 1) -> bytes:
    """An axlf container of (kind, content) sections."""
    start = 456 + 40 * len(sections)
    table, body = b"", b""
    for kind, content in sections:
        at = start + len(body)
        table += struct.pack("<I16s4xQQ", kind, f"s{kind}".encode(), at, len(content))
        body += content + bytes(-len(content) % 8)
    name = uuid.uuid5(uuid.NAMESPACE_URL, body.hex()).bytes
    head = struct.pack(
        "<8si28s256sQQQQHBBHH16s64s16s16sI4x",
        *(b"xclbin2\0", -1, b"\xff" * 28, b"\xff" * 256, 0, start + len(body), 1700000000, 0),
        *(0, 2, 13, mode, 0, bytes(16), platform.encode(), name, b"", len(sections)),
    )
    return head + table + body


def trainer(
    units: Sequence[str] = ("hyrt_train_1",),
    *,
    kernel: str = KERNEL,
    arguments: Sequence[str] = ARGUMENTS,
    design: Mapping[str, object] | None = DESIGN,
    platform: str = "xilinx_u250_gen3x16_xdma_4_1_202210_1",
    mhz: int = 300,
    mode: int = 1,
    banks: int = 4,
) -> bytes:
    """An xclbin with a trainer kernel; `design` goes to USER_METADATA where it is given."""
    sections = [
        (0, bytes(64)),
        (2, metadata(kernel, units, arguments, platform)),
        (8, ip_layout(kernel, units)),
        (6, mem_topology(banks)),
        (7, connectivity(len(units), len(arguments), banks)),
        (11, clocks(mhz)),
    ]
    if design is not None:
        sections.append((16, json.dumps(design).encode()))
    return container(sections, platform=platform, mode=mode)
