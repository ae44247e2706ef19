"""Exceptions that zipfile and numpy raise for damaged archives."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib

ARCHIVE_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,
    ValueError,
)
