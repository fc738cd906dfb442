"""PimIR, a straight-line program per core on buffers and channels, and the passes that build it and allocate memory."""

from raptor.pim.allocate_memory import allocate, memory_warnings, reuse_operands
from raptor.pim.global_memory import GlobalMemory, map_global_memory
from raptor.pim.ir import ArrayGroup, PimProgram
from raptor.pim.keep_constants import keep_constants
from raptor.pim.lower_to_pim import lower
from raptor.pim.operations import LoadRows
from raptor.pim.verify_pim import PimError, verify_global_addresses, verify_pim

__all__ = [
    "ArrayGroup",
    "GlobalMemory",
    "LoadRows",
    "PimError",
    "PimProgram",
    "allocate",
    "keep_constants",
    "lower",
    "map_global_memory",
    "memory_warnings",
    "reuse_operands",
    "verify_global_addresses",
    "verify_pim",
]
