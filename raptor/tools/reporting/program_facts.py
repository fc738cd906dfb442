"""Collects all data about one output: notes of the compiler, the profile, and the verdict on request."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from raptor.common.errors import RaptorError, UserError
from raptor.common.files import file_access
from raptor.common.option_spelling import spell_option
from raptor.output import files
from raptor.output.compile_report import CompileReport, LayerReport
from validator.accuracy.accuracy_report import AccuracyReport
from validator.profile.profile_results import PartFigures, Profile
from validator.profile.segment_profile import profile_any
from validator.program.segment_list import chip_folders, has_segments, read_segments
from validator.simulate.analysis.token_figures import StepTimes, TokenFigures

if TYPE_CHECKING:
    from validator.judge.validation_report import ValidationReport as Verdict

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """A layer of an output: `noted` in the compiler's report, `counted` in the streams; at least one is not None."""

    name: str
    noted: LayerReport | None
    counted: PartFigures | None


@dataclass(frozen=True, slots=True, eq=False)
class ProgramFacts:
    """All data about one output.

    manifest: the manifest, or the list of segments of a segmented program. report, layers: notes of the compiler.
    verdict: None without validation; `no_verdict` then says why. missing: missing or unreadable files, each with the
    effect on the page. accuracies: measurements by `raptor accuracy`. tokens: of a program that is a step of a decoder,
    when steps are streamed.
    """

    name: str
    profile: Profile
    manifest: files.OutputManifest | files.SegmentList | None
    report: CompileReport | None
    layers: tuple[LayerFacts, ...]
    verdict: "Verdict | None"
    no_verdict: str
    missing: tuple[str, ...]
    accuracies: tuple[AccuracyReport, ...] = ()
    tokens: TokenFigures | None = None

    @property
    def segments(self) -> files.SegmentList | None:
        """The segments of a segmented program, else None."""
        return self.manifest if isinstance(self.manifest, files.SegmentList) else None


def gather_facts(
    out: Path, arch: str | None = None, *, validate: bool = False, accuracies: Sequence[AccuracyReport] = ()
) -> ProgramFacts:
    """Reads, simulates, checks and, on request, validates a program.

    Raises `UserError` if `out` is not a program, or if one of `accuracies` is a measurement of another model.
    """
    counted = profile_any(out, arch)
    missing: list[str] = []
    manifest = _manifest(out, missing)
    report = _optional(CompileReport, out, files.REPORT, "operators, shapes, unfoldings and copies of layers", missing)
    if counted.part_kind == "instruction":
        missing.append(f"no {files.STEPS}: nobody knows which layer an instruction serves, so kinds of them are listed")
    if counted.crossbars is None:
        why = "no weights" if counted.chip else "no architecture"
        missing.append(f"{why}: how full crossbars are is not known")
    verdict, why = _verdict(out, manifest, validate)
    name = f"{manifest.model} ({out})" if manifest else str(out)
    for one in accuracies:
        if manifest is not None and one.model != manifest.model:
            raise UserError(f"{spell_option('accuracy')}: of model {one.model}; the program is of {manifest.model}")
    layers = tuple(_layers(counted, report))
    tokens = _find_tokens(out, counted)
    return ProgramFacts(
        name, counted, manifest, report, layers, verdict, why, tuple(missing), tuple(accuracies), tokens
    )


def _find_tokens(out: Path, counted: Profile) -> TokenFigures | None:
    """Returns the figures of a decoder's tokens; None for other programs, and without times."""
    known, power = counted.estimate, counted.power
    if known is None or not out.is_dir():
        return None
    critical = {part.name: part.critical_ns or 0.0 for part in counted.parts}
    energy = sum((known.interval_energy_pj or known.energy_pj).values())
    watts = power.uncounted.crossbars_in_use.power_w if power else None
    uncounted = None if watts is None else watts * 1e3 * (known.interval_ns or known.latency_ns)
    return TokenFigures.from_times(out, StepTimes(known.latency_ns, known.interval_ns, energy, uncounted, critical))


def _manifest(out: Path, missing: list[str]) -> files.OutputManifest | files.SegmentList | None:
    """Returns the manifest, or the list of segments."""
    if not has_segments(out):
        return _optional(files.OutputManifest, out, files.MANIFEST, "name of the model, options, validation", missing)
    missing.append(f"pictures over time: each segment has its own; try: raptor report {chip_folders(out)[0]}")
    listed = read_segments(out)
    if listed.host_nodes:
        missing.append("the host: nodes that run there are listed, their time and energy are not modelled")
    return listed


def _optional(schema: type[T], out: Path, name: str, without: str, missing: list[str]) -> T | None:
    if not (out.is_dir() and (out / name).is_file()):
        missing.append(f"no {name}: {without} are not known")
        return None
    try:
        return file_access.read_json_file(schema, out, name)
    except UserError as e:
        missing.append(f"{e}; {without} are not known")
        return None


def _verdict(
    out: Path, manifest: files.OutputManifest | files.SegmentList | None, wanted: bool
) -> "tuple[Verdict | None, str]":
    if manifest is None:
        return None, f"not possible without {files.MANIFEST}"
    if not wanted:
        return None, f"not run; try: raptor report {out} --validate"
    from validator.validate import validate

    try:
        return validate(out), ""
    except RaptorError as e:
        return None, f"stopped: {e}"


def _layers(counted: Profile, report: CompileReport | None) -> list[LayerFacts]:
    """Returns the layers that the compiler noted, in its order, then all others."""
    parts = {part.name: part for part in counted.parts}
    noted = {layer.node: layer for layer in report.layers} if report and counted.part_kind == "node" else {}
    return [
        LayerFacts(name, noted.get(name), parts.get(name)) for name in [*noted, *(n for n in parts if n not in noted)]
    ]
