"""Simulation (`raptor simulate`): time and energy of a program as pimsim-nn computes them, by part of the chip.

It is independent of the compiler, like the rest of `validator`. Read the modules in this order:

    simulated_chip  architecture file and network table, lenient as the simulator
    state           tables of a run and the meaning of their columns
    cycle_kernels   the cycle model, compiled
    cycle_model     program and chip -> tables -> times
    energy          energy by part (docs/explanation/energy.md)
    efficiency      operations per second and per joule
    layers, path    ONNX node of each instruction; the critical path
    trace           the run as a Chrome trace
    what_if         the run again, with one part of the chip twice as fast
    work            least time of each instruction, and where the time of a core goes
    geometry        check that a program fits the chip
    blocked         the blocked cores, if a program does not end
    builtin, pimsim the two engines; simulation_report, cli
"""
