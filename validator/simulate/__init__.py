"""Simulation (`raptor simulate`): time and energy of a program as pimsim-nn computes them, by part of the chip.

It is independent of the compiler, like the rest of `validator`. Read the modules in this order:

    cycle.simulated_chip          architecture file and network table, lenient as the simulator
    cycle.state_tables            tables of a run and the meaning of their columns
    cycle.cycle_kernels           the cycle model, compiled
    cycle.cycle_model             program and chip -> tables -> times
    analysis.energy               energy by part (docs/explanation/energy.md)
    analysis.efficiency           operations per second and per joule
    analysis.instruction_nodes    ONNX node of each instruction
    analysis.critical_path        the chain of instructions that takes the whole latency
    analysis.core_work            least time of each instruction, and where the time of a core goes
    analysis.link_use             use of the links between chips
    analysis.chrome_trace         the run as a Chrome trace
    analysis.deadlock             the blocked cores, if a program does not end
    chip_fit                      check that a program fits the chip
    what_if                       the run again, with one part of the chip twice as fast
    builtin, pimsim               the two engines; segment_simulation for several segments
    simulation_report, cli        the report, the command
"""
