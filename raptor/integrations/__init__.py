"""Functions for users of a framework: PyTorch, JAX, the ONNX backend, a session like onnxruntime's."""
