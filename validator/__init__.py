"""Executes a compiled program and compares it with onnxruntime.

It is independent of the compiler: of `raptor` it imports only the instruction table, the description of the chip, the
file formats, the errors and other basics. It reads only the output directory. Read the modules in this order:

    load, weights, check     directory -> Program; nothing in the directory is trusted
    machine                  memories, registers and program counters, shared by both engines
    reference                meaning of every instruction, one function each
    engine, engine_kernels   the same, compiled
    run                      inputs -> outputs
    inputs, golden, samples, compare
    exact, rounding          the model in float64, and the precision that float32 can reach
    validate, validation_report, cli

Programs of other compilers are read by `programs` (a single file by `members`) and `network`, for `checks` and
`simulate`.
"""
