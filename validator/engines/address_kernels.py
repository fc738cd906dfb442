"""Compiled checks of addresses in local and global memory."""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from validator.engines.machine import EngineStop

_UNALIGNED, _LOCAL, _OVERLAP = int(EngineStop.UNALIGNED), int(EngineStop.LOCAL_RANGE), int(EngineStop.OVERLAP)
_OK = 0
_U = np.uint64


@bare_helper
def locate_local(core, address, size, memories, fault):
    """Returns a code (0 or a fault), and the index in `local` of `size` bytes at `address` of a core."""
    local_first, length, width = memories[1], memories[2][core], memories[4]
    code, index = check_span(np.int64(address), size, length, width, fault)
    return code, _U(local_first[core] + index)


@bare_helper
def check_span(address, size, length, width, fault):
    """Returns a code (0 or a fault), and the first element of a span of bytes. `length`: elements of the memory."""
    if width > 1 and (address % width != 0 or size % width != 0):
        code = _UNALIGNED
    elif address < 0 or size < 0 or address + size > length * width:
        code = _LOCAL
    else:
        return _OK, address // width if width > 1 else address
    fault[1], fault[2] = address, size
    return code, np.int64(0)


@bare_helper
def check_overlap(target, count, source, source_count, exact, memories, core, fault):
    """Returns a fault code if a target overlaps a source, else 0. `exact`: both may be the same range."""
    if target + count <= source or source + source_count <= target or (exact and target == source):
        return _OK
    width = np.int64(memories[4])
    fault[1], fault[2] = (np.int64(target) - memories[1][core]) * width, np.int64(count) * width
    return _OVERLAP
