"""Back end for pimsim-nn: the pass from PimIR to instruction streams, and its verifier."""

from raptor.codegen.emit import VECTOR_OPCODE
from raptor.codegen.generate_streams import CoreStream, InstructionStreams, generate, operation_name
from raptor.codegen.operator_flow import operator_flow
from raptor.codegen.verify_forms import verify_forms
from raptor.codegen.verify_streams import verify_streams

__all__ = [
    "VECTOR_OPCODE",
    "CoreStream",
    "InstructionStreams",
    "generate",
    "operation_name",
    "operator_flow",
    "verify_forms",
    "verify_streams",
]
