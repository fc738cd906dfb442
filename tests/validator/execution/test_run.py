"""Runs of one program, which share what none of them changes."""

from pathlib import Path

import numpy as np

import raptor
from tests.pipeline import conv_model
from validator.engines.machine import EngineStop
from validator.engines.reference_engine import execute
from validator.engines.run_template import make_captures
from validator.execution.run import prepare_machine, run_program
from validator.load.output_directory import load_output


def test_a_run_starts_as_the_first_one_did(tmp_path: Path) -> None:
    model = conv_model((1, 3, 6, 6), 5, relu=True)
    program = load_output(raptor.compile(model, cores=20, xbar=8).save(tmp_path / "out"))
    first, second = (np.random.default_rng(seed).standard_normal((1, 3, 6, 6), np.float32) for seed in (0, 1))
    alone = run_program(program, {"x": first}, probes=True)
    machine = prepare_machine(program, {"x": second}, make_captures(program))
    words, rows = machine.words.copy(), machine.rows.copy()
    assert execute(machine, block=True, max_steps=10**6).stop is EngineStop.DONE
    assert np.array_equal(machine.words, words)
    assert np.array_equal(machine.rows, rows)
    after = run_program(program, {"x": first}, probes=True)
    assert after.instructions == alone.instructions == program.instruction_count
    for found, wanted in ((after.outputs, alone.outputs), (after.probes, alone.probes)):
        assert list(found) == list(wanted)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert prepare_machine(program, {"x": first}).words is machine.words
