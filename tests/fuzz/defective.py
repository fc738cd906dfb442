"""Random chips with defects: no program uses what is dead, and repaired ones compute what their cells hold."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.target import arch
from raptor.target.chip_file import Chip, ChipSize, chip_to_json, make_chip
from raptor.target.isa import OPCODE
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.repair_output import repair_output
from tests.all_graphs.cases import Case
from tests.fuzz import quantised
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.isolation import isolated
from tests.mesh_walks import walk
from validator.checks import check
from validator.load.output_directory import load_output

MODELS, CHIPS = 20, 200
SECONDS, MOST_STEPS, ROOM = 120, 4, 24
ENCODINGS = ("differential_analog", "differential", "offset", "twos_complement")
REFUSALS = r"take another encoding|float32 numbers has no bits"
"""Reasons for which a program may have no repair."""
NO_CORES = r"no core with as many working crossbars|links are dead; .* pairs are cut"
"""Reasons for which a program that is compiled for another chip may have no repair."""
_OF_CHIP = ("xbar", "cores", "xbars_per_core", "bits", "cell_bits")


def make_model(number: int) -> Case:
    """Returns one of 20 random quantised models, for a chip with room for a few defects."""
    case, _ = quantised.made(number, MOST_STEPS)
    options = {name: case.options[name] for name in (*_OF_CHIP, "mapping") if name in case.options}
    options["cores"] = max(6, options["cores"])
    options["xbars_per_core"] = max(ROOM, options.get("xbars_per_core", ROOM))
    return Case(case.model, {}, options)


def draw(case: Case, rng: Random) -> tuple[Chip, str]:
    """Returns a chip for a case, and the encoding of its weights. Rates are drawn, too; some chips have spares."""
    target = arch.load("bench", **{name: case.options[name] for name in _OF_CHIP if name in case.options})
    spares, encoding = rng.choice(((0, 0), (0, 0), (2, 0), (0, 2), (2, 3))), rng.choice(ENCODINGS)
    size: ChipSize = make_size(target, 2, *spares)
    lines = 1 / max(size.rows, size.columns)
    rates = DefectRates(
        stuck=rng.choice((0, 0.01, 0.05, 0.2)),
        on_share=rng.choice((0, 0.5, 1)),
        dead_rows=rng.choice((0, 0.1)) * lines,
        dead_columns=rng.choice((0, 0.1)) * lines,
        dead_crossbars=rng.choice((0, 0.1)),
        dead_cores=rng.choice((0, 1, size.cores // 4)),
    )
    seed = rng.randrange(2**32)
    rates = replace(rates, dead_links=min(rng.choice((0, 0, 1, 2, 4)), len(size.list_links())))
    return make_chip(draw_chip(size, rates, seed)), encoding


def tried(number: int, folder: Path) -> None:
    """Compiles a model around the defects of a chip, repairs the program, and judges both. Prints the outcome.

    One program in four is compiled for a chip without defects, so that the repair moves cores.
    """
    case, rng = make_model(number % MODELS), Random(f"defective:{number}")
    chip, encoding = draw(case, rng)
    folder.mkdir(parents=True, exist_ok=True)
    path, around = folder / "chip.json", rng.random() < 0.75
    path.write_bytes(chip_to_json(chip.file))
    try:
        program = raptor.compile(case.model, **case.options, **({"chip": path} if around else {}))
    except CapacityError:
        print("does not fit")
        return
    out = program.save(folder / "out", force=True)
    if around:
        assert_alive(out, chip)
    try:
        repaired = repair_output(out, chip, None, {"encoding": encoding})
    except UserError as error:
        if not around and re.search(NO_CORES, str(error)):
            print("no cores for a program that is compiled already")
            return
        if not re.search(REFUSALS, str(error)):
            raise BrokenError(f"a program around the defects is not repaired: {error}") from error
        print("refused: floats, or too few cells for an encoding")
        return
    die = repaired.save(folder / "die", force=True)
    assert_alive(die, chip)
    places = [(g.core, k) for g in repaired.repair.table.groups for k in g.crossbars]
    assert len({*places}) == len(places), "two matrices in a crossbar"
    assert not {*places}.intersection(map(tuple, chip.file.dead_crossbars)), "a dead crossbar is used"
    report = raptor.load(die).validate(samples=1, seed=number)
    assert report.passed, f"{report.verdict} at {report.first_deviation}"
    assert report.repair is not None
    print("repaired and moved:" if repaired.repair.table.moved else "repaired:", encoding)


def assert_alive(out: Path, chip: Chip) -> None:
    """Checks that a program has instructions on working cores alone, and that the checks have no finding."""
    streams = load_output(out).streams
    used = {core for core, records in enumerate(streams) if len(records)}
    assert used.isdisjoint(chip.file.dead_cores), f"dead cores are used: {used.intersection(chip.file.dead_cores)}"
    links, talks = set(chip.file.dead_links), [OPCODE[name] for name in ("send", "recv", "sync")]
    for core in used if links else ():
        partners = streams[core]["a"][np.isin(streams[core]["opcode"], talks)]
        for other in np.unique(partners).tolist():
            dead = links & walk(core, other, chip.size.mesh_columns)
            assert not dead, f"messages from core {core} to core {other} cross the dead links {dead}"
    wrong: list[Any] = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]


def case(rng: Draw, folder: Path) -> str:
    """Tries the model and the chip of a number."""
    outcome = isolated(lambda: tried(rng.number, folder / "all"), seconds=SECONDS)
    fault = outcome.fault((0,))
    if fault is not None:
        raise BrokenError(fault)
    return (outcome.out.splitlines() or [""])[-1]


DEFECTIVE = Part("defective", "chips with defects", short=4, long=MODELS * CHIPS, case=case, prepare=quantised.prepare)
