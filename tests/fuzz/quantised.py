"""Random quantised models: every integer must be that of the definition. A failing case is shrunk and printed."""

import io
import json
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from raptor.common.errors import CapacityError, UserError
from raptor.common.files import file_access
from raptor.output import files
from tests.all_graphs.builder import MisfitError
from tests.all_graphs.cases import Case
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.graphs import chip, compiled
from tests.fuzz.isolation import isolated
from tests.fuzz.quantised_builder import ACTIVATIONS, OLD_OPSETS, OPSET, Builder
from tests.fuzz.quantised_steps import build
from validator.checks import check
from validator.validate import validate

MOST_STEPS, SLOWLY, SECONDS = 8, 3000, 120
STRATEGIES = ("raptor",) * 4 + ("rows",) * 4 + ("pixelwise",)
PREPARED = 6
"""Small cases that together take every way of `tried`: both formats, engines, schedules."""
REFUSALS = (
    r"its sums reach .* more than 32 bits|beyond the range of float32"
    r"|does not fit 32-bit integers: .*; (its scale is too fine|narrower operands, or results of 8 bits, fit)"
)
"""Reasons for which a model that is drawn may be refused."""


def made(number: int, most: int = MOST_STEPS) -> tuple[Case, bool]:
    """Returns the case of a seed, and whether its model needs floats."""
    rng = Random(f"quantised:{number}")
    chosen: dict[str, Any] = chip(rng) | {"mapping": rng.choice(STRATEGIES), "bits": 8}
    chosen |= {"cores": min(chosen["cores"], 60), "cell_bits": rng.choice((8, 8, 4, 2, 1))}
    chosen["xbar"] = (chosen["xbar"][0], max(chosen["xbar"][1], -(-9 // chosen["cell_bits"])))
    if rng.random() < 0.25:
        chosen["requant"] = "instruction"
    while True:
        b = Builder(rng, opset=rng.choice((OPSET, OPSET, OPSET, *OLD_OPSETS)))
        b.base = rng.choice(ACTIVATIONS if b.opset == OPSET else ACTIVATIONS[:4])
        build(b, most)
        try:
            return Case(b.model(), {}, chosen), b.floats
        except MisfitError:
            continue


def tried(case: Case, floats: bool, number: int, folder: Path) -> None:
    """Compiles, checks and validates a case. Prints the outcome; raises an error if it is wrong."""
    try:
        program = compiled(case, folder)
    except UserError as e:
        if not isinstance(e, CapacityError) and not re.search(REFUSALS, str(e)):
            raise BrokenError(f"refused: {e}") from e
        print("refused:", re.sub(r"\d+|'[^']*'", "N", str(e))[-60:])
        return
    text = number % 3 == 0
    formats: Any = {} if text else {"stream_format": "pim", "weight_format": "npz"}
    out = program.save(folder / "out", force=True, **formats)
    wrong = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]
    numbers = file_access.read_json_file(files.OutputManifest, out, files.MANIFEST).numbers
    assert numbers == "int" or floats, "sections of floats where integers do"
    slow = number % 5 == 0 and program.report.instruction_count < SLOWLY
    options: Any = {"engine": "python" if slow else "numba", "schedule": "round-robin" if number % 2 else "block"}
    report = validate(out, samples=1, seed=number, layers=True, **options)
    found = report.integers
    assert report.passed, f"{report.verdict} at {report.first_deviation}: {found}"
    assert found is not None
    assert found.compared
    assert numbers == "mixed" or not found.float_sections, "integers where the definition has floats"
    print("right:", numbers)


def _tried(number: int, most: int, folder: Path) -> tuple[str | None, str, Case]:
    case, floats = made(number, most)
    folder.mkdir(parents=True, exist_ok=True)
    outcome = isolated(lambda: tried(case, floats, number, folder), seconds=SECONDS)
    *grown, ending = outcome.out.splitlines() or [""]
    for more in grown if ending[:1] != "{" else (*grown, ending):
        case.options.update(json.loads(more))
    return outcome.fault((0,)), ending, case


def case(rng: Draw, folder: Path) -> str:
    """Tries the model of a seed. If it fails, finds the smallest model of the seed that fails too."""
    fault, ending, given = _tried(rng.number, MOST_STEPS, folder / "all")
    if fault is None:
        return ending
    for most in range(1, MOST_STEPS):
        smaller, _, given_smaller = _tried(rng.number, most, folder / f"most{most}")
        if smaller is not None:
            raise BrokenError(f"{smaller}\n{given_smaller.script(folder)}")
    raise BrokenError(f"{fault}\n{given.script(folder)}")


def prepare() -> None:
    """Loads compiled loops of integer and mixed programs before children are forked, so that they share them."""
    programs.prepare()
    for number in range(PREPARED):
        given, floats = made(number, most=2)
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            tried(given, floats, number, Path(folder))


QUANTISED = Part("quantised", "random quantised models", short=8, long=5000, case=case, prepare=prepare)
