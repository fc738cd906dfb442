"""Verifies points of the Pareto front: validates their programs, and compares their latency with pimsim-nn."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raptor import api
from raptor.common.errors import RaptorError
from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results.pareto_front import pareto_front
from raptor.tools.explore.study.search_space import format_command
from raptor.tools.explore.study.study_file import Study


@dataclass(frozen=True, slots=True)
class FrontCheck:
    """Result of verification of a program: its compile command, the findings, and whether all are as expected."""

    command: str
    messages: tuple[str, ...]
    passed: bool

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'FAIL'}: {'; '.join(self.messages)}: {self.command}"


def verify_front(study: Study, outcomes: Sequence[TrialOutcome], count: int, pimsim: Path | None) -> list[FrontCheck]:
    """Compiles the first `count` points of the front and compares their outputs with onnxruntime.

    `pimsim`: path of the simulator (ChipTest), whose latency must equal the one of the study; None skips this.
    """
    best = pareto_front(study, outcomes)[:count]
    return [check for one in best for check in _checks(study, one, pimsim)]


def _checks(study: Study, one: TrialOutcome, pimsim: Path | None) -> Iterator[FrontCheck]:
    for model, job, record in zip(study.models, one.jobs, one.records, strict=True):
        text = format_command(model.name, job.options)
        try:
            program = api.compile(job.model, **job.options)
            verdict = program.validate().verdict
            found, is_right = [f"validate: {verdict}"], verdict == "pass"
            if pimsim is not None:
                latency_ns = _in_pimsim(program, pimsim)
                found.append(f"pimsim-nn: latency {latency_ns:g} ns, study: {record.figures['latency_ns']:g} ns")
                is_right &= abs(latency_ns - record.figures["latency_ns"]) <= 1e-6 * latency_ns
        except RaptorError as e:
            found, is_right = [str(e)], False
        yield FrontCheck(text, tuple(found), is_right)


def _in_pimsim(program: api.Program, binary: Path) -> float:
    from validator.simulate.pimsim import simulate_with_pimsim

    with tempfile.TemporaryDirectory(prefix="raptor-explore-") as scratch:
        out = program.save(Path(scratch) / "out", stream_format="json", weight_format="npz")
        return simulate_with_pimsim(out, out / "arch.json", binary).latency_ns or 0.0
