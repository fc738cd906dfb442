"""The machine pimsim-nn: from PimIR to instruction streams, their verifier, cost and files."""

from raptor.backends.pimsim.emit import VECTOR_OPCODE
from raptor.backends.pimsim.generate_streams import CoreStream, InstructionStreams, generate
from raptor.backends.pimsim.operator_flow import operator_flow
from raptor.backends.pimsim.verify_forms import verify_forms
from raptor.backends.pimsim.verify_streams import verify_streams

__all__ = [
    "VECTOR_OPCODE",
    "CoreStream",
    "InstructionStreams",
    "generate",
    "operator_flow",
    "verify_forms",
    "verify_streams",
]
