"""Graph: the model as the compiler sees it. Tensors, operators, windows, and the values they compute."""
