"""Non-ideal crossbars: weights in slices, inputs in steps, finite converters, imperfect cells.

`encodings`: weights to levels of cells. `inputs`: inputs to steps. `converters`: sums to codes. `cells`: levels to
conductances, with their errors. `wires`: resistance of the wires. `setup`: parameters of a chip; `settings`: the same
by name. `arrays`: a programmed chip. `definition`: a product in plain numpy; `kernels`: the same, compiled. `proof`:
what converters can lose, proved before a run. A new encoding, input coding or cell error is one function in the first
of these modules.
"""
