"""`raptor simulate`: time and energy of a program, as the simulator pimsim-nn computes them, and where they go.

Independent of the compiler, like the rest of `validator`. Read in this order:

    chip            architecture file and network table, lenient as the simulator
    state           what the columns of the tables mean
    kernels         the cycle model, compiled
    model           program and chip -> tables -> times
    energy          energy by part (docs/energy.md)
    efficiency      operations a second and a joule
    layers, path    ONNX node of each instruction; the critical path
    trace           the run as a Chrome trace
    what_if         the same with one part twice as fast
    blocked         what a program that does not end waits for
    builtin, pimsim the two engines; report, cli
"""
