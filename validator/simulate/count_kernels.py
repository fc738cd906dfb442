"""The compiled count of what a program asks of the parts of a chip, for its energy. No time in it."""

# Kernels are untyped for numba's sake; `energy` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit import helper, kernel
from raptor.target.isa import OPCODE
from validator.simulate.state import Count

_SETBW, _MVMUL, _VVADD, _VVSRA = (OPCODE[n] for n in ("setbw", "mvmul", "vvadd", "vvsra"))
_VVMUL, _VVSLL, _VTANH, _VSIGM, _VRSU, _VRSL = (OPCODE[n] for n in ("vvmul", "vvsll", "vtanh", "vsigm", "vrsu", "vrsl"))
_LD, _ST, _LLDI, _LMV = (OPCODE[n] for n in ("ld", "st", "lldi", "lmv"))
_SEND, _RECV, _SYNC = (OPCODE[n] for n in ("send", "recv", "sync"))
_PASSES, _VECTOR, _READ, _WRITE, _GLOBAL_READ, _GLOBAL_WRITE, _NETWORK, _INSTRUCTIONS = map(int, Count)


@kernel
def count(chip, words, first, group_first, xbars, index, flit_pj, rows, out) -> None:  # noqa: C901 one branch for each kind
    """Adds the columns `Count` of each instruction to its row of `out`, `rows[pc]`."""
    cores = first.size - 1
    for c in range(cores):
        ib, ob, bits = np.int64(0), np.int64(0), np.int64(0)
        for pc in range(first[c], first[c + 1]):
            row = out[rows[pc]]
            row[_INSTRUCTIONS] += 1
            code = words[pc, 0] & 255
            a, d = np.int64(words[pc, 1]), np.int64(words[pc, 4])
            if code == _SETBW:
                bits = np.int64(words[pc, 2])
                ib, ob = (bits + 7) >> 3, (np.int64(words[pc, 3]) + 7) >> 3
            elif code == _MVMUL:
                group = xbars[group_first[c] + words[pc, 3]]
                row[_PASSES] += group * (bits // chip.dac_resolution * chip.dac_passes)
                row[_READ] += _beats(8 * chip.rows * ib, chip.local_width)
                row[_WRITE] += _beats(chip.row_bits // a * ob * group, chip.local_width)
            elif _VVADD <= code <= _VRSL:
                wide = code in (_VVMUL, _VVSLL, _VVSRA) or _VTANH <= code <= _VSIGM or code >= _VRSU
                row[_VECTOR] += _beats(d, chip.vector_width)
                row[_READ] += _beats(ib * d, chip.local_width) * (2 if code <= _VVSRA else 1)
                row[_WRITE] += _beats((ob if wide else ib) * d, chip.local_width)
            elif code >= _LD:
                if code in (_ST, _LMV, _SEND):
                    row[_READ] += _beats(d, chip.local_width)
                if code in (_LD, _LLDI, _LMV, _RECV):
                    row[_WRITE] += _beats(d, chip.local_width)
                flits = _beats(d, chip.bus_width)
                if code == _LD:
                    row[_GLOBAL_READ] += _beats(d, chip.global_width)
                    row[_NETWORK] += _cost(flit_pj, c, cores)
                elif code == _ST:
                    row[_GLOBAL_WRITE] += _beats(d, chip.global_width)
                    row[_NETWORK] += flits * _cost(flit_pj, c, cores)
                elif code == _SEND:
                    row[_NETWORK] += (1 + flits) * _cost(flit_pj, c, index[a])
                elif code in (_RECV, _SYNC):
                    row[_NETWORK] += _cost(flit_pj, c, index[a])


@helper
def _beats(size, width):
    return (size + width - 1) // width


@helper
def _cost(network, source, to):
    """Of a flit from one core to another (`chip.Network`); nothing for a pair that does not talk."""
    first, partners, costs = network
    low, high = first[source], first[source + 1]
    while low < high:
        middle = (low + high) >> 1
        if partners[middle] < to:
            low = middle + 1
        else:
            high = middle
    return costs[low] if low < first[source + 1] and partners[low] == to else 0.0
