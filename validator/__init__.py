"""Executes a compiled program and compares it with onnxruntime.

It is independent of the compiler: of `raptor` it imports only the instruction table, the description of the chip, the
file formats, the errors and other basics. It reads only the output directory. Rooms, from the ground up:

    program     a program and its files; also programs of other compilers
    crossbar    non-ideal crossbars, and products on them
    engines     meaning of every instruction, plain and compiled
    load        output directory -> LoadedProgram; nothing in the directory is trusted
    model       the ONNX model without the compiler: onnxruntime, float64, the exact definition
    execution   inputs -> outputs
    judge       comparison, judgement by float64, bit-true validation, report
    hosted      programs in segments
    checks, simulate, profile, accuracy     what the commands of these names do
    validate, cli, check_cli                the commands `validate` and `check`
"""
