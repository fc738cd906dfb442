"""Count how often each rule of `raptor validate` is wrong: false alarms for right programs, missed defects in others.

`python -m benchmarks.correctness.verdict PART --first N --count N -o FILE` appends a line for each program to FILE.
Without a part it prints the table of docs/explanation/verdict.md from FILE. Parts: zoo, conformance, graphs, planted. A
program is right as the compiler makes it. Wrong programs have a changed weight or output, or come from a compiler with
a planted defect. `make bench-verdict` runs all of it.
"""

import argparse
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-4
TIMES_OWN = 4
"""Multiple of onnxruntime's own error that the rule `own` allows."""
JUDGE_RULES = ("old", "own", "local", "new")
"""Scales of errors: the largest value of the tensor; onnxruntime's own error, too; the largest values near; float64,
too, as in `validate`."""
RIGHT = "right"
ArrayPair = tuple[Any, Any]
ArrayChange = Callable[[Any, Any], Any]


# Changes that make a program wrong: (got, want) -> got


def _swapped(got: Any, _: Any) -> Any:
    """Swaps two neighbours along the dimension of channels, or the last dimension."""
    axis = 1 if got.ndim > 2 else got.ndim - 1
    if got.ndim == 0 or got.shape[axis] < 2:
        return got
    order = np.arange(int(got.shape[axis]))
    order[:2] = 1, 0
    return np.take(got, order, axis)


def _small(percent: float) -> ArrayChange:
    """Changes the element in the middle of the smaller half by a part of itself."""

    def change(got: Any, want: Any) -> Any:
        at = np.argsort(np.abs(want).ravel(), kind="stable")[want.size // 4]
        moved = got.copy()
        moved.ravel()[at] *= np.float32(1 + percent / 100)
        return moved

    return change


def _faint(got: Any, want: Any) -> Any:
    """Changes the channel (or last index) whose values are smallest by a tenth of itself."""
    axis = 1 if got.ndim > 2 else got.ndim - 1
    if got.ndim == 0 or got.shape[axis] < 2:
        return got
    others = tuple(a for a in range(got.ndim) if a != axis)
    at = int(np.abs(want).max(axis=others).argmin())
    moved = got.copy()
    moved[(slice(None),) * axis + (at,)] *= np.float32(1.1)
    return moved


CHANGES: dict[str, ArrayChange] = {
    "two channels swapped": _swapped,
    "smallest channel off by 10 %": _faint,
    "a small element off by 1 %": _small(1),
    "a small element off by 100 %": _small(100),
}
WEIGHT = "a weight off by 0.1 %"


def _rules(tried: Any, *, wrong: bool) -> Iterator[dict[str, Any]]:
    """Yields a line for the unchanged program, with all tensors, then a line per change that affects its outputs."""
    from dataclasses import replace

    from validator.judge.judge_program import tally_samples

    yield {"defect": RIGHT, **_judged(tried)}
    if not wrong:
        return
    tried = replace(tried, settings=replace(tried.settings, layers=False), golden=replace(tried.golden, layers=()))
    runs = {number: tried.run(number) for number in tried.numbers}
    for name, change in CHANGES.items():
        changed = {n: {s: (change(g, w), w) for s, (g, w) in run.items()} for n, run in runs.items()}
        if any((a[s][0] != b[s][0]).any() for a, b in zip(changed.values(), runs.values(), strict=True) for s in a):
            yield {"defect": name, **_judged(_replayed(tried, changed))}
    weights = tried.program.weights
    if weights.values.size:
        values = weights.values.copy()
        values[np.random.default_rng(0).integers(values.size)] *= np.float32(1.001)
        other = replace(tried, program=replace(tried.program, weights=replace(weights, values=values)))
        if any(t.error.any() for t in tally_samples(other).values()):
            yield {"defect": WEIGHT, **_judged(other)}


def _replayed(tried: Any, runs: Mapping[int, Any]) -> Any:
    """Returns the samples with other results."""
    from validator.judge.sample_runs import SampleRuns

    class Replayed(SampleRuns):
        def run(self, number: int) -> Any:
            return runs[number]

    names = ("program", "golden", "given", "numbers", "settings")
    return Replayed(*(getattr(tried, name) for name in names))


def _judged(tried: Any) -> dict[str, Any]:
    """Returns for each rule whether it passes, with the figures that decided."""
    from validator.judge.comparison import compare_tensor
    from validator.judge.judge_program import judge_tensors, tally_samples

    tallies = tally_samples(tried)
    scales = {s: float(t.largest.max(initial=0)) or 1.0 for s, t in tallies.items()}
    old = {s: bool(t.error.max() <= TOLERANCE * scales[s]) for s, t in tallies.items()}
    local = {s: compare_tensor(s.tensor, t, TOLERANCE).passed for s, t in tallies.items()}
    found, unknown = judge_tensors(tried, tallies, TOLERANCE)
    ratios = [c.rounding.ratio for c in found.values() if c.rounding]
    return {
        "old": all(old.values()),
        "own": all(old.values()) or _own(tried, {s: scales[s] for s, passed in old.items() if not passed}),
        "local": all(local.values()),
        "new": all(c.passed for c in found.values()),
        "asked": not all(local.values()),
        "ratio": max(ratios, default=0.0),
        "unknown": unknown,
        "error": max(c.max_relative for c in found.values()),
        "seconds": tried.seconds["float64"],
    }


def _own(tried: Any, scales: Mapping[Any, float]) -> bool:
    """Returns True if errors above the tolerance are at most 4 times onnxruntime's own, both against float64."""
    from raptor.output import files
    from validator.judge.comparison import absolute_errors
    from validator.model.float64 import NoFloat64Error, load_float64

    try:
        exact = load_float64(tried.program.folder / files.MODEL, tried.golden.constants)
        for number in tried.numbers:
            pairs, known = tried.run(number), exact.run(tried.inputs(number), [s.tensor for s in scales])
            for shown, scale in scales.items():
                ours, its = (float(absolute_errors(a, known[shown.tensor]).max()) for a in pairs[shown])
                if not ours <= max(TOLERANCE * scale, TIMES_OWN * its if np.isfinite(its) else 0.0):
                    return False
    except NoFloat64Error:
        return False
    return True


def _samples(out: Path, *, inputs: Mapping[str, Any] | None = None, layers: bool = True, most: int = 100) -> Any:
    """Returns the samples that `validate` would run, at most `most`."""
    from validator.execution.run import UNLIMITED
    from validator.judge.sample_runs import SampleRuns, count_quick_samples
    from validator.load.output_directory import load_output
    from validator.model.golden import load_golden_model
    from validator.options import ValidationSettings

    program = load_output(out)
    numbers = range(1 if inputs else min(most, count_quick_samples(program, "numba")))
    golden = load_golden_model(program, layers=layers)
    return SampleRuns(
        program, golden, inputs or (), numbers, ValidationSettings(TOLERANCE, layers, "numba", "block", UNLIMITED)
    )


# Programs


def judge_zoo(first: int, count: int, *, wrong: bool) -> Iterator[dict[str, Any]]:
    """Judges the built-in models at the small sizes of the tests."""
    import models
    from tests.models.test_models import small_options
    from tests.pipeline import compile_to_fit

    for name in list(models.MODELS)[first : first + count]:
        with tempfile.TemporaryDirectory() as folder:
            program = compile_to_fit(models.build(name, seed=0, **small_options(name)))
            out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
            for line in _rules(_samples(out), wrong=wrong):
                yield {"case": name, **line}


def graphs(first: int, count: int, *, wrong: bool) -> Iterator[dict[str, Any]]:
    """Judges the campaign's random graphs and chips with these seeds, on random inputs as `validate` makes them."""
    from raptor.common.errors import RaptorError
    from tests.fuzz.graphs import MOST_NODES, compiled, made

    for number in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = made(number, MOST_NODES)
                apart = {"overlap": 1} if case.options.get("optimize") == "throughput" else {}  # all tensors are judged
                program = compiled(replace(case, options={**case.options, **apart}), Path(folder))
                out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
                for line in _rules(_samples(out, most=16), wrong=wrong):
                    yield {"case": number, **line}
            except RaptorError as e:
                yield {"case": number, "defect": "refused", "why": str(e)[:200]}


def conformance(first: int, count: int, *, wrong: bool) -> Iterator[dict[str, Any]]:
    """Judges the cases of ONNX's suite that pass and have a model of their own, on the inputs of the suite."""
    from onnx.backend.test.case.node import collect_testcases

    from raptor.common.errors import RaptorError
    from tests.conformance import suite

    made = {case.name: case for case in collect_testcases()}
    for name in sorted(suite.passing() & made.keys())[first : first + count]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for line in _rules(_suite_case(made[name], Path(folder)), wrong=wrong):
                    yield {"case": name, **line}
            except RaptorError as e:
                yield {"case": name, "defect": "refused", "why": str(e)[:200]}


def _suite_case(case: Any, folder: Path) -> Any:
    """Compiles a case; inputs that the backend compiles as constants become constants of the model."""
    from onnx import numpy_helper

    from raptor.frontend.proto.opset_conversion import upgrade_opset
    from raptor.integrations import onnx_backend
    from tests.pipeline import compile_to_fit

    arrays, _ = case.data_sets[0]
    rep, model = onnx_backend.prepare(case.model), upgrade_opset(case.model)
    rep.run(list(arrays))
    values = dict(zip([v.name for v in model.graph.input], map(np.asarray, arrays), strict=False))
    bound = {name: values.pop(name) for name in rep.bound}
    inputs = [v for v in model.graph.input if v.name in values]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in bound.items())
    shapes = {name: a.shape for name, a in values.items()}
    program = compile_to_fit(model, shapes=shapes)
    out = program.save(folder / "out", stream_format="pim", weight_format="npz")
    return _samples(out, inputs=values, layers=False)


def judge_planted(first: int, count: int, **_: bool) -> Iterator[dict[str, Any]]:
    """Judges compilers with a planted defect. A case that something else catches counts as caught by every rule."""
    from tests.fuzz.defects import DEFECTS
    from tests.fuzz.isolation import isolated
    from tests.fuzz.planted import plant, prepare

    prepare()
    for number in range(first, min(first + count, len(DEFECTS))):

        def find(number: int = number) -> None:
            plant(DEFECTS[number])
            print(json.dumps(_caught()), end="")

        outcome = isolated(find, seconds=300)
        yield {"case": number, "defect": "planted in the compiler", **json.loads(outcome.out.splitlines()[-1])}


def _caught() -> dict[str, Any]:
    """Returns for each rule whether all cases pass, with the compiler in its present (changed) state."""
    import raptor
    from tests.fuzz import planted as cases

    passed = dict.fromkeys(JUDGE_RULES, True)
    for name, options in cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                program = raptor.compile(getattr(cases, name)(), **options)
                out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
                verdict = _judged(_samples(out))
            except Exception as error:  # of whatever class: the modules were imported anew
                return dict.fromkeys(JUDGE_RULES, False) | {"by": type(error).__name__}
        passed = {rule: passed[rule] and verdict[rule] for rule in JUDGE_RULES}
        if not any(passed.values()):
            break
    return passed | {"by": "verdict"}


PARTS = {f.__name__: f for f in (judge_zoo, conformance, graphs, judge_planted)}


# The table


def format_table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines of the table: false alarms for right programs, passes for wrong programs."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        if "old" in line:
            groups[line["part"], line["defect"]].append(line)
    yield f"| programs | | count | {' | '.join(JUDGE_RULES)} |"
    yield "|---|---|---:|" + "---:|" * len(JUDGE_RULES)
    for (part, defect), group in groups.items():
        wrong = [sum(line[rule] != (defect == RIGHT) for line in group) for rule in JUDGE_RULES]
        yield f"| {part} | {defect} | {len(group)} | {' | '.join(map(str, wrong))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--count", type=int, default=10_000, help="programs at most")
    parser.add_argument("--right", action="store_true", help="right programs only")
    parser.add_argument("-o", "--output", type=Path, default=Path("verdict.jsonl"), help="file of the lines")
    args = parser.parse_args()
    if args.part is None:
        print(*format_table([json.loads(line) for line in args.output.read_text().splitlines()]), sep="\n")
        return
    with args.output.open("a") as file:
        for line in PARTS[args.part](args.first, args.count, wrong=not args.right):
            print(json.dumps({"part": args.part, **line}), file=file, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
