"""Random graphs over every operator and chip, through every command; what fails is shrunk and printed as commands."""

import json
import math
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import raptor
from raptor.errors import CapacityError, UserError
from tests.all_graphs.builder import FAMILIES, TOLERANCE
from tests.all_graphs.cases import Case, build
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.isolation import isolated
from validator.checks import check
from validator.options import Engine, Schedule
from validator.simulate.builtin import simulate
from validator.validate import validate

FOCUSES = (*FAMILIES, "all")
MOST_NODES, SLOWLY, SECONDS = 40, 30_000, 180
GROWN = {"cores": "cores", "crossbars a core": "xbars_per_core"}
"""What a chip has too little of, and the option that gives it more."""


def options(rng: Random) -> dict[str, Any]:
    """A chip and a strategy: crossbars of 3 to 256, one or more in a core, one core or more, weights in slices."""
    bits, cell_bits = rng.choice(((8, 8), (8, 8), (8, 4), (8, 2), (16, 16), (16, 8), (5, 5), (32, 16)))
    rows, cols = (round(math.exp(rng.uniform(math.log(3), math.log(256)))) for _ in range(2))
    chip = {
        "xbar": (rows, max(cols, -(-bits // cell_bits))),
        "xbars_per_core": rng.choice((1, 2, 3, rng.randint(4, 64))),
        "cores": rng.choice((1, 2, rng.randint(3, 400))),
        "bits": bits,
        "cell_bits": cell_bits,
    }
    return chip | ({"mapping": "rows"} if rng.random() < 0.3 else {})


def arch_file(folder: Path, rob_size: int) -> Path:
    """The preset with another number of instructions in flight."""
    preset = json.loads((resources.files("raptor") / "presets" / "bench.json").read_text())
    preset["chip_config"]["core_config"]["rob_size"] = rob_size
    path = folder / "arch.json"
    path.write_text(json.dumps(preset))
    return path


def compiled(case: Case, arch: Path) -> raptor.Program:
    """With more cores or crossbars where the case needs them."""
    chosen = dict(case.options)
    for _ in range(4):
        try:
            return raptor.compile(case.model, arch=arch, **chosen)
        except CapacityError as e:
            chosen[GROWN[e.resource]] = e.needed
    return raptor.compile(case.model, arch=arch, **chosen)


def through_everything(case: Case, rob_size: int) -> None:
    """Prints how it ended; raises what nobody may raise."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            program = compiled(case, arch_file(folder, rob_size))
        except UserError as e:
            print(f"refused: {e.resource if isinstance(e, CapacityError) else e}", end="")
            return
        text = program.save(folder / "text")
        binary = program.save(folder / "binary", stream_format="pim", weight_format="npz")
        wrong = [f for f in check(text) if f.severity == "error"]
        assert not wrong, wrong[0]
        for out, engine, schedule in _runs(text, binary, program.report.instruction_count):
            validated(case, out, engine, schedule)
        reports = [simulate(out, str(out / "arch.json"), mode="latency") for out in (text, binary)]
        if rob_size == 1:  # beyond, the simulator sees hazards in JSON that .pim has no place for (docs/target.md)
            assert reports[0].latency_ns == reports[1].latency_ns
    print("right", end="")


def _runs(text: Path, binary: Path, instructions: int) -> Iterator[tuple[Path, Engine, Schedule]]:
    """Both engines and both schedules, from JSON and from .pim; the slow engine where that does not take minutes."""
    yield text, "numba", "block"
    yield binary, "numba", "round-robin"
    if instructions < SLOWLY:
        yield text, "python", "round-robin"
        yield binary, "python", "block"


def validated(case: Case, out: Path, engine: Engine, schedule: Schedule) -> None:
    report = validate(out, inputs=case.inputs, layers=True, tolerance=TOLERANCE, engine=engine, schedule=schedule)
    found = [*(layer.comparison for layer in report.layers), *report.outputs]
    assert report.passed, f"{engine}, {schedule}: {report.first_deviation}: {[c for c in found if not c.passed]}"
    assert all(np.isfinite(c.max_absolute) for c in found), f"{engine}, {schedule}: not finite"


def _made(number: int, most: int) -> tuple[Case, int]:
    """The graph of a seed with at most so many nodes, and a size of the reorder buffer."""
    rng = Random(f"graph:{number}")
    chosen, rob_size = options(rng), rng.randint(1, 8)
    graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
    return Case(graph.model(), graph.inputs, chosen), rob_size


def _fault(number: int, most: int) -> tuple[str | None, str]:
    """What goes wrong, and how it ended if nothing does."""
    case, rob_size = _made(number, most)
    outcome = isolated(lambda: through_everything(case, rob_size), seconds=SECONDS)
    return outcome.fault((0,)), outcome.out


def case(rng: Draw, folder: Path) -> str:
    fault, label = _fault(rng.number, MOST_NODES)
    if fault is None:
        return label.splitlines()[0][:60]
    for most in range(1, MOST_NODES + 1):
        smaller, _ = _fault(rng.number, most)
        if smaller is not None:
            case, rob_size = _made(rng.number, most)
            raise BrokenError(f"{smaller}\nwith rob_size {rob_size}:\n{case.script(folder)}")
    raise BrokenError(f"{fault}, once only")


GRAPHS = Part("graphs", "random graphs and chips", short=12, long=10_000, case=case, prepare=programs.prepare)
