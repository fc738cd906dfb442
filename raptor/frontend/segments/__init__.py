"""Splits a model into segments for the chip and for the host, each an ONNX model of its own."""

from raptor.frontend.segments.cutting import Cut, Segment, advice, cut
from raptor.frontend.segments.splitting import Part, Split, split

__all__ = ["Cut", "Part", "Segment", "Split", "advice", "cut", "split"]
