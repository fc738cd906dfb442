"""ONNX models as the validator evaluates them, without the compiler: nodes, their order, and onnxruntime's sessions."""
