"""Front end: imports ONNX models as `Graph`s. No `ModelProto` leaves this package."""

from raptor.frontend.loading import Model, Survey, load, survey
from raptor.graph.ir import Graph

__all__ = ["Graph", "Model", "Survey", "load", "survey"]
