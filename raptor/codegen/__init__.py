"""PimIR to PIMSim instruction streams."""

from raptor.codegen.generate import Stream, Streams, generate, verify_streams

__all__ = ["Stream", "Streams", "generate", "verify_streams"]
