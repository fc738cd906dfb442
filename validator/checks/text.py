"""What JSON text says and its records no longer show: unknown and missing keys, fractions, numbers that wrapped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from raptor.target.isa import INSTRUCTIONS

Masks = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# A missing key reads as 0, which is what these mean when they are left out.
_OPTIONAL = {"relu", "offset.offset_select", "offset.offset_value", "offset_value"}


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """Known keys: the bit of each, how to find it, and the bits that each opcode needs."""

    bits: Mapping[str, int]
    names: Bytes
    bounds: npt.NDArray[np.int32]
    buckets: npt.NDArray[np.int32]
    needed: Masks


@dataclass(frozen=True, slots=True, eq=False)
class TextFaults:
    """Per instruction of one stream: keys seen, oddities (see `json_kernels`); and the first unknown key."""

    seen: Masks = field(default_factory=lambda: np.zeros(0, np.int64))
    odd: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    unknown: str = ""


@cache
def key_table() -> KeyTable:
    from validator.json_kernels import BUCKETS, bucket_of

    keys = ["op", "offset", *(key.rpartition(".")[2] for s in INSTRUCTIONS for o in s.operands for key in o.json)]
    bits = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    text, bounds, buckets = b"", np.zeros((len(bits), 2), np.int32), np.full(BUCKETS, -1, np.int32)
    for key, index in bits.items():
        bounds[index] = len(text), len(text) + len(key)
        text += key.encode()
        bucket = int(bucket_of(np.frombuffer(key.encode(), np.uint8)))
        while buckets[bucket] >= 0:
            bucket = (bucket + 1) % BUCKETS
        buckets[bucket] = index
    needed = np.zeros(256, np.int64)
    for spec in INSTRUCTIONS:
        for operand in spec.operands:
            if operand.json[0] not in _OPTIONAL:
                needed[spec.opcode] |= 1 << bits[operand.json[0]]
    return KeyTable(bits, np.frombuffer(text, np.uint8), bounds, buckets, needed)


def scan_stream(content: Bytes, start: int, stop: int, count: int) -> TextFaults:
    """Looks at one stream of at most `count` instructions: the bytes `start` to `stop` of `content`."""
    from validator.json_kernels import scan

    t = key_table()
    seen, odd, unknown = np.zeros(count, np.int64), np.zeros(count, np.uint8), np.zeros(2, np.int64)
    rows = scan(content, start, stop, t.names, t.bounds, t.buckets, t.bits["offset_value"], seen, odd, unknown)
    name = content[int(unknown[0]) : int(unknown[1])].tobytes().decode(errors="replace")
    return TextFaults(seen[:rows], odd[:rows], name[:40])


def missing_key_names(needed: int) -> list[str]:
    """The keys of a mask."""
    return [key for key, bit in key_table().bits.items() if needed >> bit & 1]
