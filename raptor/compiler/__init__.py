"""From a model to the contents of its output: passes in order, search, rounds, and analyses of what was decided."""
