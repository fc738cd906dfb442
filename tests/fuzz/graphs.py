"""Random graphs of all operators on random chips, through every command. A failing case is shrunk and printed."""

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.compile_report import CompileReport
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
MOST_NODES, SLOWLY, SECONDS = 40, 10_000, 180
GROWN = {"cores": "cores", "crossbars a core": "xbars_per_core"}
"""Resources of which a chip may have too few, and the option that gives it more."""
STRATEGIES: tuple[Mapping[str, Any], ...] = (
    *[{"mapping": "raptor"}] * 9,
    *[{"mapping": "rows"}] * 6,
    {"mapping": "rows", "knobs": {"neighbours": 1.0, "latency": 8.0}},
    *[{"mapping": "rows", "knobs": {"lanes": 8.0}}] * 3,
    {"mapping": "pixelwise"},
    *({"optimize": objective, "effort": 2} for objective in ("latency", "throughput", "energy")),
)
"""Options of the strategies; one that occurs more often is drawn more often."""


def chip(rng: Random) -> dict[str, Any]:
    """Draws a chip: 3 to 256 rows and columns, one crossbar in a core or more, one core or more, weights in slices."""
    bits, cell_bits = rng.choice(((8, 8), (8, 8), (8, 4), (8, 2), (16, 16), (16, 8), (5, 5), (32, 16)))
    rows, cols = (round(math.exp(rng.uniform(math.log(3), math.log(256)))) for _ in range(2))
    return {
        "xbar": (rows, max(cols, -(-bits // cell_bits))),
        "xbars_per_core": rng.choice((1, 2, 3, rng.randint(4, 64))),
        "cores": rng.choice((1, 2, rng.randint(3, 400))),
        "bits": bits,
        "cell_bits": cell_bits,
    }


def compiled(case: Case, folder: Path) -> raptor.Program:
    """Compiles a case, with more cores or crossbars if it needs them, and prints these. `folder` gets the mapping."""
    options, kept = case.options_in(folder), folder / "mapping.json"
    for _ in range(4):
        try:
            return raptor.compile(case.model, emit_mapping=kept, **options)
        except CapacityError as e:
            more = {GROWN[e.resource]: e.needed}
            print(json.dumps(more))
            options |= more
    return raptor.compile(case.model, emit_mapping=kept, **options)


def through_everything(case: Case) -> None:
    """Compiles, checks, validates, simulates and replays a case. Prints the outcome; raises an error if it is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            program = compiled(case, folder)
        except UserError as e:
            what = e.resource if isinstance(e, CapacityError) else re.sub(r"\d+", "N", " ".join(str(e).split()))
            print("refused:", what[:50])
            return
        text = program.save(folder / "text")
        binary = program.save(folder / "binary", stream_format="pim", weight_format="npz")
        wrong = [f for f in check(text) if f.severity == "error"]
        assert not wrong, wrong[0]
        count = program.report.instruction_count
        for out, engine, schedule in _runs(text, binary, count):
            validated(case, out, engine, schedule)
        reports = [simulate(out, str(out / "arch.json"), mode="latency") for out in (text, binary)]
        if case.options["rob_size"] == 1:  # beyond, only JSON shows hazards (docs/developers/target.md)
            assert reports[0].latency_ns == reports[1].latency_ns
        if count % 3 == 0:
            replayed(case, program, folder)
    print("right:", case.options.get("mapping", "optimize"))


def _runs(text: Path, binary: Path, instructions: int) -> Iterator[tuple[Path, Engine, Schedule]]:
    """Yields output, engine and schedule of each run: both engines and schedules, from JSON and from .pim.

    The slow engine runs once, and only a program with few instructions.
    """
    yield text, "numba", "block"
    yield binary, "numba", "round-robin"
    if instructions < SLOWLY:
        yield (text, "python", "round-robin") if instructions % 2 else (binary, "python", "block")


def replayed(case: Case, program: raptor.Program, folder: Path) -> None:
    """Compiles again with the stored mapping: the files must be equal, and the report except for the search."""
    options = case.options_in(folder) | {"xbars_per_core": program.artifacts.arch.xbars_per_core}
    options |= {"cores": program.artifacts.arch.core_count, "mapping": folder / "mapping.json"}
    again = raptor.compile(case.model, **{k: v for k, v in options.items() if k not in ("optimize", "effort", "knobs")})
    one, two = (
        file_access.read_json_file(files.OutputManifest, p, files.MANIFEST)
        for p in (folder / "text", again.save(folder / "again"))
    )
    other = {name for name in one.files.keys() | two.files.keys() if one.files.get(name) != two.files.get(name)}
    assert other <= {files.REPORT}, f"the stored mapping gives other files: {sorted(other)}"
    assert without_search(program.report) == without_search(again.report), "the stored mapping reports otherwise"


def without_search(report: CompileReport) -> dict[str, object]:
    return report.model_dump(exclude={"search"})


def validated(case: Case, out: Path, engine: Engine, schedule: Schedule) -> None:
    """Validates an output with all layers, unless samples overlap; every error must be finite."""
    apart = not (out / "resident.json").exists()  # tensors between layers are of several samples otherwise
    report = validate(out, inputs=case.inputs, layers=apart, tolerance=TOLERANCE, engine=engine, schedule=schedule)
    found = [*(layer.comparison for layer in report.layers), *report.outputs]
    assert report.passed, f"{engine}, {schedule}: {report.first_deviation}: {[c for c in found if not c.passed]}"
    assert all(np.isfinite(c.max_absolute) for c in found), f"{engine}, {schedule}: not finite"


def made(number: int, most: int) -> Case:
    """Makes the case of a seed, with a graph of at most `most` nodes."""
    rng = Random(f"graph:{number}")
    chosen = chip(rng) | {"rob_size": rng.randint(1, 8)} | rng.choice(STRATEGIES)
    graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
    return Case(graph.model(), graph.inputs, chosen)


def _tried(number: int, most: int) -> tuple[str | None, str, Case]:
    """Tries a case. Returns the fault or None, the outcome, and the case with the cores and crossbars that it needs."""
    case = made(number, most)
    outcome = isolated(lambda: through_everything(case), seconds=SECONDS)
    *grown, ending = outcome.out.splitlines() or [""]
    for more in grown if ending[:1] != "{" else (*grown, ending):
        case = replace(case, options=case.options | json.loads(more))
    return outcome.fault((0,)), ending, case


def case(rng: Draw, folder: Path) -> str:
    """Tries the graph of a seed. If it fails, finds the smallest graph of the seed that fails too."""
    fault, ending, _ = _tried(rng.number, MOST_NODES)
    if fault is None:
        return ending
    for most in range(1, MOST_NODES + 1):
        smaller, _, case = _tried(rng.number, most)
        if smaller is not None:
            raise BrokenError(f"{smaller}\n{case.script(folder)}")
    raise BrokenError(f"{fault}, once only")


GRAPHS = Part("graphs", "random graphs and chips", short=12, long=10_000, case=case, prepare=programs.prepare)
