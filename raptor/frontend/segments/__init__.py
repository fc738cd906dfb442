"""Splits a model into segments for the chip and for the host, each an ONNX model of its own."""

from raptor.frontend.segments.cut_model import ModelSegment, SegmentedModel, advise_host, cut_model
from raptor.frontend.segments.predict_split import PlacedNodes, PlacementSplit, predict_split

__all__ = [
    "ModelSegment",
    "PlacedNodes",
    "PlacementSplit",
    "SegmentedModel",
    "advise_host",
    "cut_model",
    "predict_split",
]
