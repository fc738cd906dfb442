"""Crossbars as they are: weights in slices, inputs in steps, finite converters, imperfect cells.

`encodings`: weights as levels of cells. `inputs`: inputs as steps. `converters`: sums as codes. `cells`: levels as
conductances, with their errors. `wires`: resistance of the wires. `setup`: how a chip computes; `settings`: by name.
`arrays`: a chip that is programmed. `definition`: what a product is, in plain numpy; `kernels`: the same, compiled.
`proof`: what converters lose, before anything runs. A new encoding, coding of inputs, or error of cells is one function
in the first of these modules.
"""
