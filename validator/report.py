"""What a validation found, as a table for people and as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import orjson
from rich.table import Table
from rich.text import Text

from raptor.console import Console
from validator.compare import Comparison

Verdict = Literal["pass", "mismatch", "bad input", "deadlock"]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """An intermediate tensor and the ONNX node that computes it."""

    node: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Report:
    """The JSON report; `version` changes with its fields. Not a number and infinity are written as null.

    `outputs` and `layers` hold the worst of `samples` inputs; `instructions` are those of one run, `seconds` of all.
    `first_deviation` is the first ONNX node whose tensor differs; `message` says what stopped a run that did not end.
    """

    verdict: Verdict
    tolerance: float
    version: int = 2
    model: str = ""
    seed: int | None = None
    samples: int = 0
    cores: int = 0
    instructions: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    outputs: tuple[Comparison, ...] = ()
    layers: tuple[LayerComparison, ...] = ()
    first_deviation: str | None = None
    message: str | None = None

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"


def to_json(report: Report) -> bytes:
    return orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n"


def show(report: Report, console: Console, *, quiet: bool = False) -> None:
    """A table on a terminal, plain lines in a pipe; `quiet` keeps the verdict only."""
    if not quiet:
        _show_tensors(report, console)
        if report.layers:
            where = report.first_deviation
            _line(console, f"first node that deviates: {where}" if where else "no node deviates")
    ran = report.seconds.get("run", 0.0)
    count = f"{report.samples} {'input' if report.samples == 1 else 'inputs'}"
    summary = f"{report.model}: {report.instructions} instructions on {report.cores} cores, {count} in {ran:.2f} s"
    _line(console, f"{'PASS' if report.verdict == 'pass' else 'FAIL'}  {summary}, tolerance {report.tolerance:g}")


def _show_tensors(report: Report, console: Console) -> None:
    rows = [_row("layer", layer.comparison, layer.node) for layer in report.layers]
    rows += [_row("output", comparison, "") for comparison in report.outputs]
    if not console.is_terminal:
        for row in rows:
            _line(console, "  ".join(filter(None, row)))
        return
    table = Table("", "", "tensor", "node", "shape", "max abs", "max rel", "worst")
    for kind, verdict, name, node, *numbers in rows:
        table.add_row(kind, Text(verdict, "green" if verdict == "ok" else "red"), name, node, *numbers)
    console.print(table)


def _row(kind: str, c: Comparison, node: str) -> Sequence[str]:
    shape = "x".join(map(str, c.shape)) or "scalar"
    at = ",".join(map(str, c.worst))
    worst = f"[{at}] got {c.got:.6g}, want {c.want:.6g}"
    verdict = "ok" if c.passed else "differs"
    return kind, verdict, c.name, node, shape, f"abs {c.max_absolute:.3g}", f"rel {c.max_relative:.3g}", worst


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True)
