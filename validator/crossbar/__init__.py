"""Crossbars as they are: weights in slices, inputs in steps, finite converters, imperfect cells.

`encodings`: weights as levels of cells. `inputs`: inputs as steps. `converters`: sums as codes. `cells`: levels as
conductances, with their errors. `wires`: resistance of the wires. `setup`: all settings of a chip. `arrays`: a chip that
is programmed. `definition`: what a product is, in plain numpy; `kernels`: the same, compiled. `proof`: what converters
lose, before anything runs. A new encoding, way to drive inputs, or noise is an entry in the first of these.
"""
