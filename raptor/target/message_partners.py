"""The partners of messages in instruction streams: which cores they are, and streams with other numbers for them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.target import encoding
from raptor.target.isa import OPCODE, Records

Ints = npt.NDArray[np.int64]
_TALKING = np.array([OPCODE[name] for name in ("send", "recv", "sync")])


Stream = Records
"""The instructions of a core, for those who pass streams on and know no instruction."""


def find_partners(records: Records) -> Ints:
    """Returns the cores that the instructions of a stream exchange messages with, in ascending order."""
    return np.unique(records["a"][np.isin(records["opcode"], _TALKING)]).astype(np.int64)


def renumber_partners(records: Records, cores: Sequence[int]) -> Records:
    """Returns a stream whose messages go to, and come from, the cores that their partners are now (`cores`)."""
    moved = records.copy()
    talks = np.isin(records["opcode"], _TALKING)
    moved["a"][talks] = np.array(cores, np.int32)[records["a"][talks]]
    return moved


def renumber_stream(content: bytes, cores: Sequence[int], *, binary: bool) -> bytes:
    """Returns the content of a stream's file with other numbers of the partners. binary: `.pim`, not `.json`."""
    records = encoding.decode_pim(content) if binary else encoding.decode_json(content)
    return encode_stream(renumber_partners(records, cores), binary=binary)


def encode_stream(records: Records, *, binary: bool) -> bytes:
    """Returns the content of a stream's file. binary: `.pim`, not `.json`."""
    return encoding.encode_pim(records) if binary else encoding.encode_json(records)
