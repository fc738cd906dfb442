"""Graph IR: the model as typed tensors and operators on static shapes, with an evaluator in numpy."""
