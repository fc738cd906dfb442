"""Executes a compiled program and compares it with onnxruntime.

Independent of the compiler: of `raptor` it imports the instruction table, the file formats and the errors, nothing
else, and it reads only the output directory. Read in this order:

    load, weights, check   directory -> Program; nothing in the directory is trusted
    machine                memories, registers and program counters, shared by both engines
    reference              what every instruction does, one function each
    engine, kernels        the same, compiled
    run                    inputs -> outputs
    inputs, golden, samples, compare
    exact, rounding        the model in float64, and what float32 can promise
    validate, report, cli

Anyone's programs are read by `programs` (a single file by `members`) and `network`, for `checks` and `simulate`.
"""
