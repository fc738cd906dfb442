"""Random programs with memory: stages of samples that overlap, constants that stay, and states.

Stages are drawn, and not searched for: a share of the latency is the interval of the modulo schedule. So most programs
are slower than without stages, but must be as right. A failing case is shrunk and printed.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import numpy as np

import raptor
from raptor.common.errors import CapacityError, UserError
from tests.all_graphs.builder import TOLERANCE
from tests.all_graphs.cases import Case, build
from tests.compiler.test_random_states import quantised_steps_agree, stateful, steps_agree
from tests.fuzz import programs, quantised
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.graphs import GROWN, chip
from tests.fuzz.isolation import isolated
from validator.checks import check
from validator.load.output_directory import load_output
from validator.validate import validate

FOCUSES = ("convolution", "product", "pool", "elementwise")
MOST_NODES, MOST_STEPS, SECONDS, AFTER_DELAY = 20, 6, 120, 4
LONGER, TRIES = 1.5, 6
"""Factor from an interval that needs too many stages to the next one, and most intervals that are tried."""


def made(number: int, most: int) -> Case:
    """Returns the float graph (even seeds) or the quantised one of a seed, with options of its program."""
    rng = Random(f"memory:{number}")
    if number % 2:
        case, _ = quantised.made(number, min(most, MOST_STEPS))
    else:
        graph = build(rng, FOCUSES[number // 2 % len(FOCUSES)], most)
        case = Case(graph.model(), graph.inputs, chip(rng))
    kept = {"mapping": "rows", "resident_constants": rng.random() < 0.5, "cores": rng.randint(3, 40)}
    return replace(case, options=case.options | kept)


def compiled(case: Case, stored: Path) -> raptor.Program:
    """Compiles a case on a chip that is large enough, which is noted in `case`. `stored` gets the mapping."""
    for _ in range(TRIES):
        try:
            return raptor.compile(case.model, emit_mapping=stored, **case.options)
        except CapacityError as e:
            if e.resource not in GROWN:
                raise
            case.options[GROWN[e.resource]] = e.needed
    return raptor.compile(case.model, emit_mapping=stored, **case.options)


def with_stages(case: Case, stored: Path, interval_ns: float, sample: int, method: str) -> raptor.Program:
    """Compiles a case by its stored mapping, with stages by an interval, or by a longer one if these are too many."""
    text, options = json.loads(stored.read_text()), dict[str, Any](case.options)
    options["mapping"] = stored
    for _ in range(TRIES):
        named = {"interval_ns": interval_ns, "patience_ns": 0.0, "sample": sample, "method": method}
        text["decision"]["flow"]["stages"] = named
        stored.write_text(json.dumps(text))
        try:
            return raptor.compile(case.model, **options)
        except UserError as e:
            if "stages, more than" not in str(e):
                raise
        interval_ns *= LONGER
    raise UserError("too many stages for each interval")


def tried(case: Case, number: int, folder: Path) -> None:
    """Compiles, checks and validates a case. Prints the outcome; raises an error if it is wrong."""
    rng, stored = Random(f"stages:{number}"), folder / "mapping.json"
    try:
        latency_ns = compiled(case, stored).simulate().latency_ns or 0.0
        interval_ns, method = rng.uniform(0.02, 0.5) * latency_ns + 1.0, rng.choice(("modulo", "slices"))
        program = with_stages(case, stored, interval_ns, rng.randrange(3), method)
    except UserError as e:
        print("refused:", re.sub(r"\d+|'[^']*'", "N", " ".join(str(e).split()))[-50:])
        return
    out = program.save(folder / "out", stream_format="pim", weight_format="npz")
    wrong = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]
    delay = max(load_output(out).delays.values(), default=0)
    report = validate(out, samples=delay + AFTER_DELAY, seed=number, tolerance=None if number % 2 else TOLERANCE)
    assert report.passed, f"{report.verdict} at {report.first_deviation}: {report}"
    kept = ", constants stay" if case.options["resident_constants"] else ""
    print("right:", "integers" if number % 2 else "floats", f"{min(delay, 3)} passes late{kept}")


def steps_tried(number: int, folder: Path) -> None:
    """Runs a random model with states, on a chip with other options, step by step beside onnxruntime.

    Models of odd seeds are quantised, and compared with the definition of their integers.
    """
    rng = Random(f"states:{number}")
    scheme = rng.choice(("s8s8", "u8s8", "pow2"))
    options: dict[str, Any] = {"mapping": rng.choice(("rows", "raptor", "pixelwise")), "cores": rng.randint(6, 24)}
    options |= {"xbar": rng.choice((8, 16, 32)), "xbars_per_core": 256, "resident_constants": rng.random() < 0.5}

    @hypothesis.seed(number)
    @hypothesis.settings(max_examples=3, database=None, deadline=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(stateful())
    def agree(case: Any) -> None:
        if number % 2:
            quantised_steps_agree(case, scheme, options, folder / "out")
        else:
            steps_agree(case, options, folder / "out")

    np.random.seed(number)
    agree()
    print(
        "right: states of",
        "integers" if number % 2 else "floats",
        "and constants" if options["resident_constants"] else "alone",
    )


def case(rng: Draw, folder: Path) -> str:
    """Tries the program of a seed. If it fails, finds the smallest graph of the seed that fails too."""
    number = rng.number
    if number % 5 == 0:
        outcome = isolated(lambda: steps_tried(number, folder), seconds=SECONDS)
        if fault := outcome.fault((0,)):
            raise BrokenError(fault)
        return (outcome.out.splitlines() or [""])[-1]
    fault, ending = _tried(number, MOST_NODES, folder / "all")
    if fault is None:
        return ending
    for most in range(1, MOST_NODES):
        smaller, _ = _tried(number, most, folder / f"most{most}")
        if smaller is not None:
            raise BrokenError(f"{smaller}\n{made(number, most).script(folder)}")
    raise BrokenError(f"{fault}\n{made(number, MOST_NODES).script(folder)}")


def _tried(number: int, most: int, folder: Path) -> tuple[str | None, str]:
    folder.mkdir(parents=True, exist_ok=True)
    outcome = isolated(lambda: tried(made(number, most), number, folder), seconds=SECONDS)
    return outcome.fault((0,)), (outcome.out.splitlines() or [""])[-1]


MEMORY = Part("memory", "stages, states, constants that stay", short=8, long=2000, case=case, prepare=programs.prepare)
