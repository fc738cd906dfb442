"""The machine pimsim-nn: from PimIR to instruction streams, their verifier, cost and files."""

from raptor.codegen.pimsim.emit import VECTOR_OPCODE
from raptor.codegen.pimsim.generate_streams import CoreStream, InstructionStreams, generate
from raptor.codegen.pimsim.operator_flow import operator_flow
from raptor.codegen.pimsim.verify_forms import verify_forms
from raptor.codegen.pimsim.verify_streams import verify_streams

__all__ = [
    "VECTOR_OPCODE",
    "CoreStream",
    "InstructionStreams",
    "generate",
    "operator_flow",
    "verify_forms",
    "verify_streams",
]
