"""ONNX models in, `Graph`s out. No `ModelProto` leaves this package."""

from raptor.frontend.graph import Graph
from raptor.frontend.loading import Model, load

__all__ = ["Graph", "Model", "load"]
