"""The model as the compiler sees it: tensors and operators, windows, and what they compute."""
