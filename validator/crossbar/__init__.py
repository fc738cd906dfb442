"""Non-ideal crossbars: weights in slices, inputs in steps, finite converters, imperfect cells.

`weight_encodings`: weights to levels of cells. `input_codings`: inputs to steps. `converters`: sums to codes. `cells`:
levels to conductances, with their errors. `wire_resistance`: resistance of the wires. `chip_parameters`: parameters of
a chip; `chip_settings`: the same by name. `programmed_chip`: a programmed chip. `reference_product`: a product in plain
numpy; `crossbar_kernels`: the same, compiled. `lossless_proof`: what converters can lose, proved before a run. A new
encoding, input coding or cell error is one function in the first of these modules.
"""
