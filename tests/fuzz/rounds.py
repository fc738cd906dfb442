"""Random graphs on chips that are too small: rounds are right, or refused with a reason; a missing write is found."""

import hashlib
import json
import math
import re
from pathlib import Path
from random import Random
from typing import Any

import onnx

import raptor
from raptor.common import storage
from raptor.common.errors import UserError
from raptor.output import files
from tests.all_graphs.builder import TOLERANCE
from tests.all_graphs.cases import Case, build
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.graphs import chip
from tests.fuzz.isolation import isolated
from validator.checks import check
from validator.hosted.load import load_hosted
from validator.validate import validate

FOCUSES = ("convolution", "product", "convolution", "product", "all")
MOST_NODES, SECONDS = 20, 240


def made(number: int, most: int) -> Case:
    """Returns the case of a seed: a model, and a chip that is too small by 1.1 to 10 times, of one or more chips."""
    rng = Random(f"rounds:{number}")
    graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
    options = {k: v for k, v in chip(rng).items() if k != "rob_size"}
    options |= {"mapping": rng.choice(("rows", "rows", "raptor"))}
    chips = rng.choice((1, 1, 2, 3))
    options |= {"cores": rng.randint(1, 4)}
    least = _crossbars(graph.model(), options)
    factor = math.exp(rng.uniform(math.log(1.1), math.log(10)))
    options["xbars_per_core"] = max(1, math.ceil(least / factor / options["cores"] / chips))
    if chips > 1:
        options |= {"chips": chips, "link": rng.choice(("board-ht", "package-ucie", "50:1"))}
    options |= {
        "batch": 2 ** rng.randint(0, 8),
        "device": rng.choice(("reram-puma", "reram-verify", "pcm-occ", "sram")),
    }
    return Case(graph.model(), graph.inputs, options)


def _crossbars(model: onnx.ModelProto, options: dict[str, Any]) -> int:
    """Returns the crossbars that all weights need with one copy; a guess if the model is refused on any chip."""
    try:
        large = options | {"cores": 1, "xbars_per_core": 2**16, "mapping": "raptor"}
        return raptor.compile(model, **large).report.xbars_used
    except UserError:
        return 8


def tried(case: Case, number: int, folder: Path) -> None:
    """Compiles, checks and validates a case, and leaves out a write of some. Raises an error for a wrong outcome."""
    try:
        program = raptor.compile(case.model, rounds=True, **case.options)
    except UserError as e:
        print("refused:", re.sub(r"\d[\d,]*|'[^']*'", "N", str(e))[-60:])
        return
    out = program.save(folder / "out", stream_format="pim", weight_format="npz", force=True)
    wrong = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]
    report = validate(out, tolerance=TOLERANCE, inputs=case.inputs)
    assert report.passed, f"{report.first_deviation}: {report.reason}: {report}"
    if not (out / files.ROUNDS).is_file():
        print("right: fits the chip")
        return
    found = storage.read(files.Rounds, out, files.ROUNDS)
    figures = raptor.simulate(out, mode="throughput").reloading
    assert figures is not None
    assert figures.batch_ns >= figures.writing_ns >= 0
    assert figures.sample_ns >= figures.without_ns
    if number % 2 == 0:
        _forget(out, Random(number))
    count = len(found.rounds)
    print(f"right: {count if count < 4 else '4 or more'} rounds{', sliced' if found.split else ''}")


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
        load_hosted(out)
    except UserError as e:
        if "neither written nor left" in str(e):
            return
    raise BrokenError(f"write {write} of round {at} is left out, and nobody sees it")


def _tried(number: int, most: int, folder: Path) -> tuple[str | None, str, Case]:
    case = made(number, most)
    folder.mkdir(parents=True, exist_ok=True)
    outcome = isolated(lambda: tried(case, number, folder), seconds=SECONDS)
    return outcome.fault((0,)), (outcome.out.splitlines() or [""])[-1], case


def case(rng: Draw, folder: Path) -> str:
    """Tries the case of a seed. If it fails, finds the smallest graph of the seed that fails too."""
    fault, ending, _ = _tried(rng.number, MOST_NODES, folder / "first")
    if fault is None:
        return ending
    for most in range(1, MOST_NODES + 1):
        smaller, _, found = _tried(rng.number, most, folder / "smaller")
        if smaller is not None:
            onnx.save(found.model, folder / "model.onnx")
            raise BrokenError(f"{smaller}\n{found.options}: {folder / 'model.onnx'}")
    raise BrokenError(f"{fault}, once only")


ROUNDS = Part("rounds", "chips that are too small", short=10, long=1000, case=case, prepare=programs.prepare)
