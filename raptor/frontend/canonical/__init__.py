"""Canonical models: rewrites of ONNX to the few standard operators that have importers."""
