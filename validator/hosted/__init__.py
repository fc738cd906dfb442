"""Programs in segments: some segments run on the chip, the others in onnxruntime on the host."""
