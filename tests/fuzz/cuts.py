"""Random graphs with random nodes on the host: together the segments are the model, and a wrong segment is caught."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.common.files import file_access
from raptor.frontend import support_query
from raptor.frontend.proto import read_model
from raptor.options import ModelInputs
from raptor.output import files
from tests.all_graphs.builder import TOLERANCE
from tests.all_graphs.cases import Case, build
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.graphs import GROWN, chip
from tests.fuzz.isolation import isolated
from validator.checks import check
from validator.judge.validation_report import ValidationReport
from validator.validate import validate

FOCUSES = ("convolution", "product", "convolution", "recurrent", "all")
MOST_NODES, SECONDS = 25, 180


def made(number: int, most: int) -> tuple[Case, tuple[str, ...]]:
    """Returns the case of a seed, and the names of the nodes for the host: few or many."""
    rng = Random(f"cut:{number}")
    graph = build(rng, FOCUSES[number % len(FOCUSES)], most)
    case = Case(graph.model(), graph.inputs, chip(rng) | {"mapping": rng.choice(("rows", "raptor"))})
    names = dict.fromkeys(
        a.name for a in support_query.query_support(read_model.read_model(case.model), ModelInputs()).answers
    )
    share = rng.choice((0.05, 0.2, 0.5))
    return case, tuple(name for name in names if rng.random() < share)


def tried(case: Case, nodes: Sequence[str], number: int, folder: Path) -> None:
    """Compiles, checks and validates a case, and breaks a segment of some. Raises an error if the outcome is wrong."""
    try:
        program = _compiled(case, nodes)
    except UserError as e:
        print("refused:", re.sub(r"\d+|'[^']*'", "N", str(e))[-60:])
        return
    out = program.save(folder / "out", stream_format="pim", weight_format="npz", force=True)
    if not (out / files.SEGMENTS).is_file():
        print("right: all on the chip")
        return
    listed = file_access.read_json_file(files.SegmentList, out, files.SEGMENTS)
    wrong = [f for f in check(out) if f.severity == "error"]
    assert not wrong, wrong[0]
    report = _validated(case, out)
    assert report.passed, f"{report.first_deviation}: {report.reason}: {report}"
    _compare_apart(case, program, report)
    if number % 3 == 0:
        _break(out, listed, Random(number), case)
    chips = sum(s.kind == "chip" for s in listed.segments)
    print("right:", "3 or more" if chips > 2 else chips, "segments of the chip")


def _compiled(case: Case, nodes: Sequence[str]) -> raptor.Program:
    options = {k: v for k, v in case.options.items() if k != "rob_size"}
    for _ in range(6):
        try:
            return raptor.compile(case.model, host=True, host_nodes=nodes, **options)
        except CapacityError as e:
            options |= {GROWN[e.resource]: e.needed}
    return raptor.compile(case.model, host=True, host_nodes=nodes, **options)


def _validated(case: Case, out: Path) -> ValidationReport:
    return validate(out, tolerance=TOLERANCE, inputs=case.inputs)


def _compare_apart(case: Case, program: raptor.Program, report: ValidationReport) -> None:
    """Compares the outputs with onnxruntime here, without the code that `validate` uses for segments."""
    if report.reason or report.by_suite:  # float64, the host's choices or ONNX's own suite have decided
        return
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    found = program.run(case.inputs)
    for name, want in zip(names, session.run(names, dict(case.inputs)), strict=True):
        scale = max(float(np.abs(want[np.isfinite(want)]).max(initial=0.0)), 1e-6)
        np.testing.assert_allclose(found[name], want, rtol=0.02, atol=0.02 * scale, err_msg=name)


def _break(out: Path, listed: files.SegmentList, rng: Random, case: Case) -> None:
    """Shifts a float tensor that a host segment makes, and its hash in the list: the verdict must name the segment."""
    floats = {c.name for c in listed.crossings if c.type == "tensor(float)" and c.size_bytes}
    places = [(k, n) for k, s in enumerate(listed.segments) if s.kind == "host" for n in s.makes if n in floats]
    if not places:
        return
    at, name = rng.choice(places)
    path = out / listed.segments[at].path
    _shift(path, name)
    content = path.read_bytes()
    changed = json.loads((out / files.SEGMENTS).read_bytes())
    changed["segments"][at] |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    (out / files.SEGMENTS).write_text(json.dumps(changed))
    report = _validated(case, out)
    wrong = [s.path for s in report.segments if not s.passed]
    if report.passed or wrong != [path.name]:
        raise BrokenError(f"'{name}' of {path.name} is shifted, but the verdict is {report.verdict}: {wrong}")


def _shift(path: Path, name: str) -> None:
    """Makes a model compute twice a tensor and 7 more.

    No number of a random graph stays the same by that: they are at most 4 in size, and many tensors are just 1 or -1.
    """
    model = onnx.load(path)
    inner = f"{name}.before"
    for node in model.graph.node:
        node.output[:] = [inner if o == name else o for o in node.output]
        node.input[:] = [inner if i == name else i for i in node.input]
    weight = next((t for t in model.graph.initializer if t.name == name), None)
    if weight is not None:
        weight.name = inner
    for key, value in (("two", 2.0), ("seven", 7.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"{name}.{key}"))
    model.graph.node.append(helper.make_node("Mul", [inner, f"{name}.two"], [f"{name}.twice"]))
    model.graph.node.append(helper.make_node("Add", [f"{name}.twice", f"{name}.seven"], [name]))
    kept = [v for v in model.graph.value_info if v.name != name]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, path)


def _tried(number: int, most: int, folder: Path) -> tuple[str | None, str, Case, tuple[str, ...]]:
    case, nodes = made(number, most)
    folder.mkdir(parents=True, exist_ok=True)
    outcome = isolated(lambda: tried(case, nodes, number, folder), seconds=SECONDS)
    ending = (outcome.out.splitlines() or [""])[-1]
    return outcome.fault((0,)), ending, case, nodes


def case(rng: Draw, folder: Path) -> str:
    """Tries the cut of a seed. If it fails, finds the smallest graph of the seed that fails too."""
    fault, ending, *_ = _tried(rng.number, MOST_NODES, folder / "first")
    if fault is None:
        return ending
    for most in range(1, MOST_NODES + 1):
        smaller, _, model, nodes = _tried(rng.number, most, folder / "smaller")
        if smaller is not None:
            onnx.save(model.model, folder / "model.onnx")
            raise BrokenError(f"{smaller}\nhost_nodes={nodes!r}, {model.options}: {folder / 'model.onnx'}")
    raise BrokenError(f"{fault}, once only")


CUTS = Part("cuts", "random nodes on the host", short=10, long=3000, case=case, prepare=programs.prepare)
