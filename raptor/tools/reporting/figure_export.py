"""Export of key figures as JSON, CSV and Markdown. Numbers are not rounded; units are in the names."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel

from raptor.output import files
from raptor.output.compile_report import LayerReport
from raptor.tools.reporting import key_figures
from raptor.tools.reporting.number_texts import NO_BREAK_SPACE
from raptor.tools.reporting.program_comparison import compare_figures, list_caveats
from raptor.tools.reporting.program_facts import ProgramFacts
from validator.accuracy.accuracy_report import AccuracyReport
from validator.checks.findings import Finding
from validator.profile.profile_results import PartFigures
from validator.simulate.simulation_report import number_text

COMPARISON_VERSION = 2
_WORDS = ("model", "compiled by", "chip")


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """A layer: `counted` in the instruction streams, `noted` by the compiler; null if unknown."""

    name: str
    counted: PartFigures | None
    noted: LayerReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramNumbers:
    """Numbers on the report page of a program; null if unknown. Units are in the names of `figures`.

    `power_window_ns`: window of the peak power in `figures`. `segments` and `host_nodes` are empty for a program
    that runs on the chip alone.
    """

    program: str
    model: str
    compiled_by: str
    chip: str
    options: Mapping[str, Any] | None
    verdict: str | None
    figures: Mapping[str, float | None]
    power_window_ns: float | None
    layers_are: str
    layers: tuple[LayerNumbers, ...]
    segments: tuple[files.SegmentFile, ...]
    host_nodes: tuple[files.HostNode, ...]
    findings: tuple[Finding, ...]
    not_known: tuple[str, ...]
    not_modelled: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNumbers(ProgramNumbers):
    """Result of `report --json`; `version` changes with the fields. `accuracies`: the measurements of `--accuracy`."""

    accuracies: tuple[AccuracyReport, ...]
    version: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNumbers(ProgramNumbers):
    """One of the compared programs. `ratios`: its key figures divided by the figures of the first program."""

    ratios: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonNumbers:
    """Result of `compare --json`; `version` changes with the fields."""

    version: int = COMPARISON_VERSION
    programs: tuple[ComparedNumbers, ...]
    notes: tuple[str, ...]


def report_json(facts: ProgramFacts) -> bytes:
    """Returns the JSON of `report --json`."""
    return _json(ReportNumbers(**_output(facts), accuracies=facts.accuracies))


def compare_json(outputs: Sequence[ProgramFacts]) -> bytes:
    """Returns the JSON of `compare --json`: the numbers of each output, and their ratios to the first output."""
    compared = compare_figures(outputs)
    ratios = [{row.figures[0].key: row.ratios[k] for row in compared} for k in range(len(outputs))]
    programs = tuple(ComparedNumbers(**_output(f), ratios=r) for f, r in zip(outputs, ratios, strict=True))
    return _json(ComparisonNumbers(programs=programs, notes=tuple(list_caveats(outputs))))


def compare_csv(outputs: Sequence[ProgramFacts]) -> bytes:
    """Returns CSV with a row for each output; an unknown figure is empty."""
    compared = compare_figures(outputs)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["program", *(word.replace(" ", "_") for word in _WORDS), *(row.figures[0].key for row in compared)])
    for k, facts in enumerate(outputs):
        table.writerow([facts.profile.program, *_words(facts).values(), *(row.figures[k].value for row in compared)])
    return text.getvalue().encode()


def compare_markdown(outputs: Sequence[ProgramFacts]) -> bytes:
    """Returns a Markdown table with a row for each figure and a column for each output, with six digits."""
    lines = [["figure", *(_cell(f.name) for f in outputs)], ["---", *("---:" for _ in outputs)]]
    for row in compare_figures(outputs):
        first = row.figures[0]
        name = f"{first.name}, {first.unit}" if first.unit else first.name
        lines.append([name, *(_plain(figure.value) for figure in row.figures)])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (text + "".join(f"\n{_cell(note)}\n" for note in list_caveats(outputs))).encode()


def _cell(name: str) -> str:
    """Escapes a name from a file, so that it starts neither a column nor a line."""
    return " ".join(name.replace("\\", "\\\\").replace("|", "\\|").split())


def _plain(value: float | None) -> str:
    """Returns a number without exponent and thousands separators."""
    return "" if value is None else number_text(value).replace(",", "")


def _json(value: ReportNumbers | ComparisonNumbers) -> bytes:
    return orjson.dumps(value, default=_plain_model, option=orjson.OPT_INDENT_2) + b"\n"


def _plain_model(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json")


def _words(facts: ProgramFacts) -> dict[str, str]:
    known = {f.name: f.shown.replace(NO_BREAK_SPACE, " ") for f in key_figures.list_head_figures(facts)}
    return {word.replace(" ", "_"): known[word] for word in _WORDS}


def _output(facts: ProgramFacts) -> dict[str, Any]:
    return {
        "program": facts.profile.program,
        **_words(facts),
        "options": facts.manifest.options if facts.manifest else None,
        "verdict": facts.verdict.verdict if facts.verdict else None,
        "figures": {f.key: f.value for f in key_figures.list_key_figures(facts)},
        "power_window_ns": facts.profile.power.alone.window_ns if facts.profile.power else None,
        "layers_are": facts.profile.part_kind,
        "layers": tuple(LayerNumbers(layer.name, layer.counted, layer.noted) for layer in facts.layers),
        "segments": facts.segments.segments if facts.segments else (),
        "host_nodes": facts.segments.host_nodes if facts.segments else (),
        "findings": tuple(facts.profile.findings),
        "not_known": (*facts.missing, *([facts.profile.untimed] if facts.profile.untimed else [])),
        "not_modelled": key_figures.list_unmodelled(facts.profile),
        "warnings": tuple(facts.profile.warnings),
    }
