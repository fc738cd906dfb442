"""ONNX models as MLIR text of the dialect `onnx`, written and read."""
