"""Random graphs on chips that are too small: rounds are right, or refused with a reason; a missing write is found."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import onnx

import raptor
from raptor.api import Program
from raptor.common.errors import CapacityError, UserError
from raptor.common.files import file_access
from raptor.compiler.pass_driver import Driver, StoppedAfterPass
from raptor.output import files, round_files
from raptor.output.writer import HostedArtifacts
from tests.all_graphs.builder import TOLERANCE
from tests.all_graphs.cases import Case, build
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.graphs import chip
from tests.fuzz.isolation import isolated
from validator.checks import check
from validator.load.segmented_program import load_segmented
from validator.validate import validate

FOCUSES = ("convolution", "product", "convolution", "product", "all")
MOST_NODES, MOST_DRAWS, SECONDS = 20, 8, 240
ALONE = "too large for a round of its own"
OF_ROUNDS = ("batch", "device", "cuts")


def made(number: int, most: int) -> Case:
    """Returns the case of a seed: a model, and a chip that is too small by 1.1 to 10 times, of one or more chips.

    A graph that fits the smallest chip gives way to the next one, for some times.
    """
    rng = Random(f"rounds:{number}")
    for _ in range(MOST_DRAWS):
        graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
        found = Case(graph.model(), graph.inputs, _options(rng, graph.model()))
        if _is_too_small(found):
            break
    return found


def _options(rng: Random, model: onnx.ModelProto) -> dict[str, Any]:
    """Draws a strategy, a batch, a device, and a chip with fewer crossbars than the model needs."""
    options = {k: v for k, v in chip(rng).items() if k != "rob_size"}
    options |= {"mapping": rng.choice(("rows", "rows", "raptor"))}
    factor = math.exp(rng.uniform(math.log(1.1), math.log(10)))
    crossbars = max(1, int(_crossbars(model, options) / factor))
    chips = rng.randint(1, min(3, crossbars)) if rng.random() < 0.5 else 1
    options["cores"] = rng.randint(1, min(4, crossbars // chips))
    options["xbars_per_core"] = crossbars // chips // options["cores"]
    if chips > 1:
        options |= {"chips": chips, "link": rng.choice(("board-ht", "package-ucie", "50:1"))}
    options |= {"cuts": rng.choice(("best", "best", "first-fit", "each-layer"))}
    return options | {
        "batch": 2 ** rng.randint(0, 8),
        "device": rng.choice(("reram-puma", "reram-verify", "pcm-occ", "sram")),
    }


def _crossbars(model: onnx.ModelProto, options: dict[str, Any]) -> int:
    """Returns the crossbars that all weights need with one copy; a guess if the model is refused on any chip."""
    try:
        large = options | {"cores": 1, "xbars_per_core": 2**16, "mapping": "raptor"}
        return raptor.compile(model, **large).report.xbars_used
    except UserError:
        return 8


def _is_too_small(case: Case) -> bool:
    """Tells whether the chip of a case cannot hold all of the model. (A model that is refused anyway is not.)"""
    chip = {k: v for k, v in case.options.items() if k not in OF_ROUNDS}
    try:
        raptor.compile(case.model, **chip, driver=Driver(stop_after="map"))
    except CapacityError:
        return True
    except (UserError, StoppedAfterPass):
        return False
    return False


def tried(case: Case, number: int, folder: Path) -> None:
    """Compiles, checks and validates a case, and leaves out a write of some. Raises an error for a wrong outcome."""
    program = _compiled(case)
    if program is None:
        return
    out = program.save(folder / "out", stream_format="pim", weight_format="npz", force=True)
    wrong = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]
    report = validate(out, tolerance=TOLERANCE, inputs=case.inputs)
    assert report.passed, f"{report.first_deviation}: {report.reason}: {report}"
    if not (out / files.ROUNDS).is_file():
        print(_without_rounds(out, case))
        return
    found = file_access.read_json_file(round_files.RoundList, out, files.ROUNDS)
    figures = raptor.simulate(out, mode="throughput").reloading
    assert figures is not None
    assert figures.batch_ns >= figures.writing_ns >= 0
    assert figures.sample_ns >= figures.without_ns
    if number % 2 == 0:
        _forget(out, Random(number))
    count, chips = len(found.rounds), case.options.get("chips", 1)
    print(
        f"right: {count if count < 4 else '4 or more'} rounds{', sliced' if found.split else ''}"
        f"{', several chips' if chips > 1 else ''}"
    )


def _compiled(case: Case) -> Program | None:
    """Compiles a case; where a layer alone does not fit, on chips with ever more crossbars. None if it is refused."""
    options = dict(case.options)
    while True:
        try:
            program = raptor.compile(case.model, rounds=True, **options)
        except UserError as e:
            if ALONE in str(e):
                options["xbars_per_core"] *= 2
                continue
            print("refused:", re.sub(r"\d[\d,]*|'[^']*'", "N", str(e))[-60:])
            return None
        if isinstance(program.artifacts, HostedArtifacts) or options == case.options:
            return program
        print("refused: rounds of a layer that does not fit alone")
        return None


def _without_rounds(out: Path, case: Case) -> str:
    """Simulates a program that needs no rounds; says whether anything crosses the links between chips."""
    links = raptor.simulate(out).links
    assert len(links) == case.options.get("chips", 1) - 1
    return f"right: fits, {'crossed' if any(link.flits for link in links) else 'no'} links"


def _forget(out: Path, rng: Random) -> None:
    """Leaves out a write of a crossbar, and corrects the hash in the list: the program must be refused."""
    found = json.loads((out / files.ROUNDS).read_bytes())
    places = [(k, j) for k, one in enumerate(found["rounds"]) for j in range(len(one["writes"]))]
    if not places:
        return
    at, write = rng.choice(places)
    del found["rounds"][at]["writes"][write]
    content = json.dumps(found).encode()
    (out / files.ROUNDS).write_bytes(content)
    listed = json.loads((out / files.SEGMENTS).read_bytes())
    listed["files"][files.ROUNDS] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (out / files.SEGMENTS).write_text(json.dumps(listed))
    try:
        load_segmented(out)
    except UserError as e:
        if "neither written nor left" in str(e):
            return
    raise BrokenError(f"write {write} of round {at} is left out, and nobody sees it")


def on_chips(number: int, most: int) -> Case:
    """Returns the case of a seed: a model, and several chips that hold all of it, a stage or more on each."""
    rng = Random(f"chips:{number}")
    graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
    options = {k: v for k, v in chip(rng).items() if k != "rob_size"}
    chips, cores = rng.randint(2, 4), rng.randint(1, 12)
    room = math.exp(rng.uniform(math.log(1.5), math.log(8)))
    options |= {"mapping": rng.choice(("rows", "rows", "rows", "raptor")), "chips": chips, "cores": cores}
    options["xbars_per_core"] = math.ceil(_crossbars(graph.model(), options) * room / chips / cores)
    return Case(graph.model(), graph.inputs, options | {"link": rng.choice(("board-ht", "50:1", "500:13000"))})


def _tried(make: Callable[[int, int], Case], number: int, most: int, folder: Path) -> tuple[str | None, str, Case]:
    case = make(number, most)
    folder.mkdir(parents=True, exist_ok=True)
    outcome = isolated(lambda: tried(case, number, folder), seconds=SECONDS)
    return outcome.fault((0,)), (outcome.out.splitlines() or [""])[-1], case


def case(rng: Draw, folder: Path, make: Callable[[int, int], Case] = made) -> str:
    """Tries the case of a seed. If it fails, finds the smallest graph of the seed that fails too."""
    fault, ending, _ = _tried(make, rng.number, MOST_NODES, folder / "first")
    if fault is None:
        return ending
    for most in range(1, MOST_NODES + 1):
        smaller, _, found = _tried(make, rng.number, most, folder / "smaller")
        if smaller is not None:
            onnx.save(found.model, folder / "model.onnx")
            raise BrokenError(f"{smaller}\n{found.options}: {folder / 'model.onnx'}")
    raise BrokenError(f"{fault}, once only")


def case_on_chips(rng: Draw, folder: Path) -> str:
    """Tries the case of a seed on several chips, as `case` does."""
    return case(rng, folder, on_chips)


ROUNDS = Part("rounds", "chips that are too small", short=10, long=1000, case=case, prepare=programs.prepare)
CHIPS = Part("chips", "several chips", short=5, long=1000, case=case_on_chips, prepare=programs.prepare)
