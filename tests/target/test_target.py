"""The target as a value of ours, and what is made of it from pimsim-nn's architecture file."""

from dataclasses import replace

from raptor.target.arch import Widths, describe_chip, load


def test_every_field_that_takes_part_in_time_is_in_the_target():
    """All numbers differ, so that no field can hold the value of another."""
    chip = describe_chip("bench", cores=6, xbar=(96, 80), xbars_per_core=7, cell_bits=2).file.chip_config
    target = load("bench", cores=6, xbar=(96, 80), xbars_per_core=7, cell_bits=2, bits=4)
    core, matrix = chip.core_config, chip.core_config.matrix_config
    assert (target.chips, target.cores_per_chip, target.core_count) == (1, 6, 6)
    assert (target.xbar_rows, target.xbar_cols, target.xbars_per_core, target.cell_bits) == (96, 80, 7, 2)
    assert target.outputs_per_xbar == 2 * 80 // 4
    assert target.core.vector_step_ns == core.vector_latency_cycle
    assert target.core.xbar.read_ns == matrix.xbar_latency
    for ours, theirs in ((target.core.memory, core.local_memory_config), (target.memory, chip.global_memory_config)):
        assert (ours.beat_bytes, ours.read_cycles) == (theirs.data_width, theirs.read_latency_cycle)
        assert (ours.write_cycles, ours.period_ns) == (theirs.write_latency_cycle, theirs.period)
    assert target.network.flit_bytes == chip.network_config.bus_width
    assert (target.network.rows, target.network.cols) == chip.network_config.layout


def test_widths_are_apart():
    """A weight decides how many outputs a crossbar has, an activation what is read, an accumulator what is written."""
    target = replace(load("bench", cores=4), widths=Widths(weights=4, activations=8, accumulators=32))
    assert target.outputs_per_xbar == target.cell_bits * target.xbar_cols // 4
    assert (target.element_bytes, target.accumulator_bytes) == (1, 4)


def test_several_chips_are_more_cores():
    target = load("bench", cores=4)
    two = load("bench", cores=4, chips=2, link="package-ucie")
    assert (two.core_count, two.cores_per_chip) == (8, target.cores_per_chip)
