"""Report of a validation, as a table for people and as JSON for programs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal

import orjson
from rich.table import Table
from rich.text import Text

from raptor.common.files.schema_types import JsonNumber, WallTimes
from raptor.common.terminal.abbreviation import fit_names
from raptor.common.terminal.console import LiteralConsole
from validator.judge.comparison import RoundingVerdict, TensorComparison
from validator.judge.float64_judge import ALLOWED_DEVIATIONS
from validator.judge.integer_difference import IntegerDifference

Verdict = Literal["pass", "mismatch", "bad input", "deadlock"]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """An intermediate tensor and the ONNX node that computes it."""

    node: str
    comparison: TensorComparison


@dataclass(frozen=True, slots=True)
class IntegerFigures:
    """Counts for an integer program.

    `compared` integers of the program are compared with the definition of the model; `differing` of them are not equal.
    With float sections, `floats` numbers are compared with onnxruntime, `floats_differing` of them are off by more than
    the tolerance, and `excused` integers differ no more than the floats before them may. `shortened` integers are off
    by one, as the short multipliers of the program allow. onnxruntime computes `by_onnxruntime` integers from the
    definition's, node by node; `departing` of them differ, and `explained` of these are as near to a tie as float32
    can tell. `departures` lists their tensors. When onnxruntime computes the model from its inputs instead,
    `outputs_departing` of `outputs` values differ. `tables`: functions of one quantised tensor; `float_sections`:
    integer tensors that are rounded from floats.
    """

    compared: int
    differing: int
    by_onnxruntime: int
    departing: int
    explained: int
    floats: int = 0
    floats_differing: int = 0
    excused: int = 0
    shortened: int = 0
    outputs: int = 0
    outputs_departing: int = 0
    departures: tuple[IntegerDifference, ...] = ()
    tables: tuple[str, ...] = ()
    float_sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """Verdict on one segment, fed with the tensors that onnxruntime computes in the whole model.

    `cut`: its ONNX model in onnxruntime, against the whole model. On the chip, `outputs`, `layers` and `integers`
    compare its program with its ONNX model. `reason`: as in `ValidationReport`.
    """

    path: str
    kind: Literal["chip", "host"]
    passed: bool
    cut: tuple[TensorComparison, ...]
    outputs: tuple[TensorComparison, ...] = ()
    layers: tuple[LayerComparison, ...] = ()
    first_deviation: str | None = None
    integers: IntegerFigures | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DecodingFigures:
    """Tokens that a decoder and onnxruntime generate, each from its own: `tokens` of them, the first `equal` are equal.

    `smallest_gap`: of onnxruntime's two largest logits, over the equal tokens. `first_gap`: the gap at the first token
    that differs. `undecided`: the gap there is within the tolerance, so that neither token is wrong.
    """

    tokens: int
    equal: int
    smallest_gap: JsonNumber
    first_gap: JsonNumber | None = None
    undecided: bool = False

    @property
    def agrees(self) -> bool:
        """True if no token is wrong."""
        return self.equal == self.tokens or self.undecided


@dataclass(frozen=True, slots=True)
class KindVerdict:
    """Verdict on one input of another kind than standard normal numbers (docs/explanation/verdict.md).

    `no finite numbers`: onnxruntime computes none from the input, or refuses it, so nothing was compared.
    """

    kind: str
    verdict: Literal["pass", "mismatch", "no finite numbers"]


@dataclass(frozen=True, slots=True)
class RepairVerdict:
    """Verdict on the cells of a repaired program.

    The streams run on the cells of the chip, slice by slice, and once more on whole repaired weights. `differing` of
    `compared` outputs are not equal. `from_wanted`: outputs that differ from those of the weights as compiled.
    """

    chip: str
    compared: int
    differing: int
    from_wanted: int

    @property
    def passed(self) -> bool:
        return not self.differing


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Result of a validation as JSON; `version` changes with its fields. NaN and infinity are written as null.

    `outputs` and `layers`: the worst of `samples` inputs. `instructions`: of one run; `seconds`: of all.
    `first_deviation`: the first ONNX node whose tensor differs. `message`: what stopped a run that did not end.
    `reason`: one sentence on the judgement by float64, if an error is above the tolerance
    (docs/explanation/verdict.md). `integers`: counts for an integer program; errors of its tensors are in integer
    steps. `by_suite`: ONNX nodes that are judged by ONNX's own suite, because onnxruntime deviates from it. `segments`:
    verdicts on the segments of a program, each alone; `outputs` then belong to the whole program. `kinds`: verdicts
    on inputs of other kinds; if one fails, `outputs` and `reason` are for it. `decoding`: the tokens of a decoder.
    `repair`: verdict on the cells of a program that is repaired for a chip; the other fields are for the weights as
    compiled.
    """

    verdict: Verdict
    tolerance: JsonNumber
    version: int = 7
    model: str = ""
    seed: int | None = None
    samples: int = 0
    cores: int = 0
    instructions: int = 0
    seconds: WallTimes = field(default_factory=dict[str, float])
    outputs: tuple[TensorComparison, ...] = ()
    layers: tuple[LayerComparison, ...] = ()
    first_deviation: str | None = None
    by_suite: tuple[str, ...] = ()
    integers: IntegerFigures | None = None
    message: str | None = None
    reason: str | None = None
    segments: tuple[SegmentVerdict, ...] = ()
    kinds: tuple[KindVerdict, ...] = ()
    decoding: DecodingFigures | None = None
    repair: RepairVerdict | None = None

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"


def explain_verdict(found: Iterable[TensorComparison], unknown: str) -> str | None:
    """Explains a verdict that the tolerance alone did not decide, by the tensor that matters most; else None.

    `unknown`: why float64 could not compute the model.
    """
    if unknown:
        return f"by the tolerance alone, because float64 cannot be asked: {unknown}"
    judged = [(c.name, c.rounding) for c in found if c.rounding is not None]
    failed = [(name, r) for name, r in judged if not r.passed]
    if not judged:
        return None
    return _sentence(*(failed[0] if failed else max(judged, key=lambda pair: pair[1].ratio)))


def _sentence(name: str, r: RoundingVerdict) -> str:
    at = f"{name} [{','.join(map(str, r.at))}]"
    if r.passed and not r.deviation:
        return f"{at}: {r.got:.6g} is right by float64, which gives {r.exact:.6g}; float32 in onnxruntime is off"
    allowed = f"rounding to float32 moves it by {r.deviation:.3g}, {ALLOWED_DEVIATIONS} times that is allowed"
    return f"{at}: {r.got:.6g} is off by {r.error:.3g} from float64's {r.exact:.6g}; {allowed}"


def to_json(report: ValidationReport) -> bytes:
    return orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n"


def show(report: ValidationReport, console: LiteralConsole, *, quiet: bool = False) -> None:
    """Prints a table on a terminal, plain lines in a pipe; `quiet`: only the verdict."""
    if not quiet:
        for segment in report.segments:
            _line(console, _segment(segment))
        _show_tensors(report, console)
        if report.layers:
            where = report.first_deviation
            _line(console, f"first node that deviates: {where}" if where else "no node deviates")
        if report.reason:
            _line(console, report.reason)
        if report.integers is not None:
            _show_departures(report.integers, console)
        if report.repair is not None:
            _line(console, _describe_repair(report.repair))
        for name in report.by_suite:
            _line(console, f"node {name}: judged by ONNX's own suite, from which onnxruntime departs")
    ran = report.seconds.get("run", 0.0)
    unit = "input" if report.decoding is None else "step"
    count = f"{report.samples} {unit if report.samples == 1 else f'{unit}s'}"
    work = f"{report.instructions} instructions on " if report.instructions else ""  # a back end does not count them
    summary = f"{report.model}: {work}{report.cores} cores, {count} in {ran:.2f} s"
    summary += _of_kinds(report) + _of_tokens(report.decoding)
    judged = (
        f", tolerance {report.tolerance:g}" if report.integers is None else f"; {describe_integers(report.integers)}"
    )
    _line(console, f"{'PASS' if report.verdict == 'pass' else 'FAIL'}  {summary}{judged}")


def _describe_repair(found: RepairVerdict) -> str:
    judged = (
        f"{found.differing} of {found.compared} outputs differ from those of the repaired weights"
        if found.differing
        else f"equal to the repaired weights, bit for bit ({found.compared} outputs)"
    )
    return f"cells of chip {found.chip}: {judged}; {found.from_wanted} differ from those of the weights as compiled"


def _of_tokens(found: DecodingFigures | None) -> str:
    """Names the number of equal tokens, and the gap of the two best logits where they differ."""
    if found is None:
        return ""
    text = f", {found.equal} of {found.tokens} tokens equal"
    if found.first_gap is None:
        return text
    why = " (undecided)" if found.undecided else ""
    return f"{text}; there the two best logits of onnxruntime differ by {found.first_gap:.3g}{why}"


def _of_kinds(report: ValidationReport) -> str:
    """Names the kinds of inputs that were compared, and the kinds that give no finite numbers in onnxruntime."""
    compared = [one.kind for one in report.kinds if one.verdict != "no finite numbers"]
    others = [one.kind for one in report.kinds if one.verdict == "no finite numbers"]
    seconds = report.seconds.get("kinds", 0.0)
    without = f" (from {', '.join(others)} onnxruntime makes no finite numbers)" if others else ""
    return f", one each of {', '.join(compared) or 'no other kind'}{without} in {seconds:.2f} s" if report.kinds else ""


def _segment(segment: SegmentVerdict) -> str:
    """Returns one line on a segment: its verdict, and its worst difference."""
    parts = {"cut": segment.cut, "program": segment.outputs}
    wrong = [
        f"{part}: {c.name} rel {c.max_relative:.3g}" for part, found in parts.items() for c in found if not c.passed
    ]
    most = max((c.max_relative for found in parts.values() for c in found), default=0.0)
    shown = (
        "; ".join(wrong) or (segment.first_deviation and f"first node: {segment.first_deviation}") or f"rel {most:.3g}"
    )
    return f"{segment.path}  {segment.kind}  {'ok' if segment.passed else 'differs'}  {shown}"


def describe_integers(found: IntegerFigures) -> str:
    """Returns a sentence that says how a program, its definition and onnxruntime agree."""
    unexplained = found.departing - found.explained
    explained = "" if not found.departing else f", {unexplained} not explained" if unexplained else ", all explained"
    return (
        f"{_judged(found)}; differs from onnxruntime in {found.departing} of {found.by_onnxruntime} values{explained}"
    )


def _judged(found: IntegerFigures) -> str:
    if found.differing:
        return f"differs from the definition in {found.differing} of {found.compared} integers"
    if found.floats_differing:
        return (
            f"differs from onnxruntime in {found.floats_differing} of {found.floats} floats by more than the tolerance"
        )
    near = {"integers rounded from floats": found.excused, "floats": found.floats}
    equal = f"bit for bit equal to the definition ({found.compared - found.excused - found.shortened} integers)"
    equal += f", {found.shortened} one off by short multipliers" if found.shortened else ""
    parts = [f"{count} {what}" for what, count in near.items() if count]
    return f"{equal}, {' and '.join(parts)} within the tolerance" if parts else equal


def _show_departures(found: IntegerFigures, console: LiteralConsole) -> None:
    """Prints, for each tensor, the first integer of onnxruntime that nothing explains."""
    for one in found.departures:
        if one.unexplained:
            at = ",".join(map(str, one.at))
            values = f"[{at}] onnxruntime {one.got}, the definition {one.want}"
            _line(console, f"node {one.node}: {one.unexplained} of {one.total} integers not explained, {values}")


def _show_tensors(report: ValidationReport, console: LiteralConsole) -> None:
    compared = [(layer.comparison, layer.node) for layer in report.layers]
    compared += [(comparison, "") for comparison in report.outputs]
    if not console.is_terminal:
        for comparison, node in compared:
            _line(console, "  ".join(filter(None, _row("layer" if node else "output", comparison, node))))
        return
    names = [name for comparison, node in compared for name in (comparison.name, node) if name]
    console.print(fit_names(console, names, partial(_table, compared), columns=2))


def _table(compared: Sequence[tuple[TensorComparison, str]], names: Mapping[str, str]) -> Table:
    table = Table("", "tensor", "node", "shape", "max abs", "max rel", "worst", box=None, pad_edge=False)
    for comparison, node in compared:
        _, verdict, name, _, shape, _, _, worst = _row("", comparison, node)
        errors = (f"{comparison.max_absolute:.3g}", f"{comparison.max_relative:.3g}")
        mark = Text(verdict, "green" if comparison.passed else "red")
        table.add_row(mark, names[name], names.get(node, "output"), shape, *errors, "" if comparison.passed else worst)
    return table


def _row(kind: str, c: TensorComparison, node: str) -> Sequence[str]:
    shape = "x".join(map(str, c.shape)) or "scalar"
    at = ",".join(map(str, c.worst))
    worst = f"[{at}] got {c.got:.6g}, want {c.want:.6g}"
    verdict = "ok" if c.passed else "differs"
    return kind, verdict, c.name, node, shape, f"abs {c.max_absolute:.3g}", f"rel {c.max_relative:.3g}", worst


def _line(console: LiteralConsole, text: str) -> None:
    console.print(text, soft_wrap=True)
