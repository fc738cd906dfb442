"""Compiled scalar instructions, for the engine and for code that computes registers without running a program."""

# Helpers are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import OPCODE

_SLDI, _SLD, _SADD, _SSUB, _SMUL = (OPCODE[n] for n in ("sldi", "sld", "sadd", "ssub", "smul"))
_SADDI, _SMULI = (OPCODE[n] for n in ("saddi", "smuli"))


@bare_helper
def compute_scalar(op, x, y, imm):
    """Returns the integer that `op` writes to rd, wrapped to 32 bits. `x`, `y`: values of rs1 and rs2."""
    if op == _SLDI:
        return np.int64(imm)
    if op == _SADD:
        return _wrap(x + y)
    if op == _SSUB:
        return _wrap(x - y)
    if op == _SMUL:
        return _wrap(x * y)
    if op == _SADDI:
        return _wrap(x + imm)
    if op == _SMULI:
        return _wrap(x * imm)
    if op == _SLD:
        return np.int64(0)  # the engine executes sld itself; values in global memory are not known here
    raise NotImplementedError("a scalar instruction without a meaning")


@bare_helper
def _wrap(value):
    return ((value + 2147483648) & 4294967295) - 2147483648
