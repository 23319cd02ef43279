"""The header of a zone's file: what it is, and for how long its clock holds.

0      8         12     20       28       44      60                 68     84        92      96        4096
┌───────┬─────────┬──────┬────────┬────────┬───────┬──────────────────┬──────┬─────────┬───────┬─────────┬──────────▶
│ magic │ version │ kind │ size   │ secret │ node  │ epoch offset, µs │ boot │ created │ CRC32 │ nothing │ the kind's own
└───────┴─────────┴──────┴────────┴────────┴───────┴──────────────────┴──────┴─────────┴───────┴─────────┴──────────▶
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

MAGIC = b"\x89DIANA\r\n"
VERSION = 1
"""Of the layout, of either kind. Another one is never misread."""
BODY = 4096
"""Where the kind's own layout begins."""

_HEADER = struct.Struct("<8sI8sQ16s16sq16sq")
_CHECKSUM = struct.Struct("<I")


class Header(NamedTuple):
    magic: bytes
    version: int
    kind: str
    size: int
    secret: bytes
    """For the hashes of keys: which of them meet cannot be found out from outside."""
    node: bytes
    """What the zone is called among the nodes of a fleet, however many processes use it."""
    epoch_offset_us: int
    """Add it to the monotonic clock: one clock for all processes, whenever they started."""
    boot: bytes
    """Of the machine: the monotonic clock begins anew with it."""
    created_us: int

    def packed(self) -> bytes:
        fields = _HEADER.pack(*self._replace(kind=self.kind.encode()))  # type: ignore[arg-type]
        return fields + _CHECKSUM.pack(zlib.crc32(fields))


def read_header(descriptor: int) -> tuple[Header | None, str]:
    """Or what is wrong with it."""
    fields = os.pread(descriptor, _HEADER.size, 0)
    checksum = os.pread(descriptor, _CHECKSUM.size, _HEADER.size)
    if not fields.startswith(MAGIC) or len(checksum) < _CHECKSUM.size:
        return None, "its file is no zone"
    if checksum != _CHECKSUM.pack(zlib.crc32(fields)):
        return None, "its header is damaged"
    header = Header._make(_HEADER.unpack(fields))
    kind: bytes = header.kind  # type: ignore[assignment]
    header = header._replace(kind=kind.rstrip(b"\0").decode("ascii", "replace"))
    if os.fstat(descriptor).st_size != header.size:
        return None, "its file was cut short or extended"
    return header, ""


def boot_of_machine() -> bytes:
    try:
        spelled = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        return bytes.fromhex(spelled.strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
