"""What users of a framework call: PyTorch, JAX, the ONNX backend, a session like onnxruntime's."""
