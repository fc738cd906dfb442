"""ONNX files as objects: reading, checks, plain values of nodes, wrappers of onnx and onnxruntime."""
