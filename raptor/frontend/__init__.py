"""Front end: imports ONNX models as `Graph`s. No `ModelProto` leaves this package."""

from raptor.frontend.loading import LoadedModel, ModelSurvey, load, survey
from raptor.graph.ir import Graph

__all__ = ["Graph", "LoadedModel", "ModelSurvey", "load", "survey"]
