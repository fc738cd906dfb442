"""ONNX models in, `Graph`s out. No `ModelProto` leaves this package."""

from raptor.frontend.graph import Graph
from raptor.frontend.loading import Model, Survey, load, survey

__all__ = ["Graph", "Model", "Survey", "load", "survey"]
