"""The tools. Each gets the served folder, and a function that is told the stage; the rest comes from the client."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

from raptor import api
from raptor.common.errors import UserError
from raptor.compiler.analysis.inspection import inspect
from raptor.compiler.pass_driver import Driver, StoppedAfterPass
from raptor.frontend.proto.read_model import read_model
from raptor.target.arch import arch_presets
from raptor.tools.mcp import schemas
from raptor.tools.mcp.served_folder import ServedFolder

Report = Callable[[str], None]
_MOST_CHARACTERS = 60_000
"""Most characters of a page."""
_LONGEST_LINE = 2000
_NO_OPTIONS, _DEFAULTS = schemas.InspectChoice(), schemas.CompileChoice()


def inspect_model(
    served: ServedFolder, report: Report, model: schemas.ModelPath, options: schemas.InspectChoice = _NO_OPTIONS
) -> schemas.InspectResult:
    """Counts the operations and crossbars of a model, and lists nodes that cannot be compiled. Does not compile it."""
    report("inspect")
    found = inspect(served.find_model(model), **_options(options))
    nodes = [
        schemas.UnsupportedEntry(node=each.node, op_type=each.op_type, reason=_cut(each.reason))
        for each in found.unsupported
    ]
    return schemas.InspectResult(
        compiles=not nodes,
        inputs={name: list(shape) for name, shape in found.inputs.items()},
        outputs={name: list(shape) for name, shape in found.outputs.items()},
        parameters=found.parameters,
        macs=found.macs,
        xbars=found.xbars,
        cores_needed=found.cores_needed,
        operators={each.op_type: each.nodes for each in found.operators},
        unsupported=nodes[: schemas.MOST_ENTRIES],
        unsupported_total=len(nodes),
        notes=_texts(found.notes),
    )


def compile_model(
    served: ServedFolder,
    report: Report,
    model: schemas.ModelPath,
    options: schemas.CompileChoice = _DEFAULTS,
) -> schemas.CompileResult:
    """Compiles a model for a chip and keeps the program. The same model with the same options is compiled once."""
    path = served.find_model(model)
    name = _key(served, path, options)
    folder = served.kept.relative_to(served.root) / name
    reused = (served.root / folder).is_dir()
    if reused:
        program = api.load(served.find_program(str(folder)))
    else:
        program = api.compile(path, driver=Driver(started=report), **_options(options))
        report("write")
        made = program.save(_work_folder() / "out", weight_format="npz")
        folder = served.keep(made, name)
    found = program.report
    return schemas.CompileResult(
        program=folder.as_posix(),
        reused=reused,
        instructions=found.instruction_count,
        xbars_used=found.xbars_used,
        xbars_available=found.xbars_available,
        cores_used=found.cores_used,
        cores_available=found.cores_available,
        peak_local_bytes=found.peak_local_bytes,
        warnings=_texts(found.warnings),
    )


def validate_program(
    served: ServedFolder, report: Report, program: schemas.ProgramPath, seed: int = 0
) -> schemas.ValidateResult:
    """Executes all instructions on random inputs and compares the outputs with onnxruntime on the ONNX model."""
    report("validate")
    found = api.load(served.find_program(program)).validate(seed=seed)
    outputs = [
        schemas.OutputError(
            name=each.name, passed=each.passed, max_absolute=each.max_absolute, max_relative=each.max_relative
        )
        for each in found.outputs
    ]
    return schemas.ValidateResult(
        passed=found.passed,
        samples=found.samples,
        outputs=outputs[: schemas.MOST_ENTRIES],
        first_deviation=found.first_deviation,
        reason=found.reason,
        message=None if found.message is None else _cut(found.message),
    )


def simulate_program(
    served: ServedFolder,
    report: Report,
    program: schemas.ProgramPath,
    mode: Literal["latency", "throughput"] = "latency",
) -> schemas.SimulateResult:
    """Estimates time and energy: of one sample alone, or of samples one after another (throughput)."""
    report("simulate")
    found = api.simulate(served.find_program(program), mode=mode)
    longest = sorted(found.critical_path_ns.items(), key=lambda entry: -entry[1])[: schemas.MOST_ENTRIES]
    return schemas.SimulateResult(
        latency_ns=found.latency_ns,
        interval_ns=found.interval_ns,
        energy_pj=found.energy_pj,
        power_average_w=found.power_average_w,
        area_mm2=found.area_mm2,
        instructions=found.instructions,
        critical_path_ns=dict(longest),
        warnings=_texts(found.warnings),
    )


def explain_program(served: ServedFolder, report: Report, program: schemas.ProgramPath) -> schemas.ExplainResult:
    """Explains what the mapping chose for each layer, and what limits the time."""
    report("explain")
    found = api.load(served.find_program(program)).explain()
    layers = [
        schemas.LayerEntry(
            node=each.node,
            op_type=each.op_type,
            unfolding=each.unfolding,
            cores=len(each.cores),
            xbars=each.xbars,
            products_ns=each.products_ns,
            work_ns=each.work_ns,
        )
        for each in found.layers
    ]
    return schemas.ExplainResult(
        latency_ns=found.latency_ns,
        interval_ns=found.interval_ns,
        binds=_cut(found.binds),
        advice=_texts(found.advice),
        layers=layers[: schemas.MOST_ENTRIES],
        layers_total=len(layers),
        warnings=_texts(found.warnings),
    )


def check_program(served: ServedFolder, report: Report, program: schemas.ProgramPath) -> schemas.CheckResult:
    """Looks for problems in the instruction streams that the simulator would accept silently."""
    report("check")
    found = api.load(served.find_program(program)).check()
    entries = [
        schemas.FindingEntry(
            rule=each.rule,
            severity=each.severity,
            message=_cut(each.message),
            advice=_cut(each.advice),
            core=each.core,
            pc=each.pc,
            count=each.count,
        )
        for each in found[: schemas.MOST_ENTRIES]
    ]
    return schemas.CheckResult(findings=entries, findings_total=len(found))


def read_stream(
    served: ServedFolder,
    report: Report,
    program: schemas.ProgramPath,
    core: int,
    first: schemas.FirstLine = 0,
    count: schemas.LineCount = 100,
) -> schemas.TextPage:
    """Returns instructions of a core, one JSON object a line."""
    report("read")
    folder = served.find_program(program)
    path = folder / f"core_{core}.json"
    if not path.is_file():
        raise UserError(f"{program}: core {core} has no stream in the form JSON")
    with path.open(encoding="utf-8") as file:
        return _page((line.rstrip(",\n") for line in file if line not in ("[\n", "]\n")), first, count)


def read_level(
    served: ServedFolder,
    report: Report,
    model: schemas.ModelPath,
    level: schemas.Name,
    options: schemas.CompileChoice = _DEFAULTS,
    first: schemas.FirstLine = 0,
    count: schemas.LineCount = 100,
) -> schemas.TextPage:
    """Returns an intermediate form as text, after a pass such as load, partition, schedule, lower or allocate."""
    path = served.find_model(model)
    name = f"{_key(served, path, options)}.{hashlib.sha256(level.encode()).hexdigest()[:12]}.txt"
    kept = served.kept / name
    if not kept.is_file() or kept.is_symlink():
        try:
            api.compile(path, driver=Driver(stop_after=level, started=report), **_options(options))
        except StoppedAfterPass as stopped:
            made = _work_folder() / name
            made.write_text(stopped.text, encoding="utf-8")
            served.keep(made, name)
        else:
            raise UserError(f"{level}: no such pass of this compilation")
    with kept.open(encoding="utf-8") as file:
        return _page((line.rstrip("\n") for line in file), first, count)


TOOLS: Mapping[str, Callable[..., schemas.ToolSchema]] = {
    function.__name__: function
    for function in (
        *(inspect_model, compile_model, validate_program, simulate_program),
        *(explain_program, check_program, read_stream, read_level),
    )
}
"""The tools by name. The client sees their parameters after the second, their results, and their docstrings."""
WRITING = ("compile_model", "read_level")
"""Tools that keep a result in the served folder."""


def _options(choice: schemas.InspectChoice) -> dict[str, Any]:
    """Returns the options of `raptor.compile`. Raises `UserError` for an architecture that is no preset."""
    if choice.arch is not None and choice.arch not in arch_presets():
        raise UserError(f"arch {choice.arch}: no preset; there are {', '.join(arch_presets())}")
    return choice.model_dump(exclude_none=True)


def _key(served: ServedFolder, path: Path, options: schemas.CompileChoice) -> str:
    """Returns a name for the result of compiling a model: a digest of its content, the options and the version."""
    from raptor import __version__

    data = read_model(path).onnx_bytes
    if len(data) > served.model_bytes:
        raise UserError(f"{path}: {len(data)} bytes with its weights, more than the {served.model_bytes} that are read")
    given = json.dumps([__version__, path.stem, options.model_dump(exclude_none=True)], sort_keys=True)
    return hashlib.sha256(given.encode() + data).hexdigest()[:16]


def _work_folder() -> Path:
    """Returns a new folder for unfinished results, in the folder for temporary files of this process."""
    return Path(mkdtemp()).absolute()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def _texts(found: Sequence[str]) -> list[str]:
    return [_cut(text) for text in found[: schemas.MOST_ENTRIES]]


def _page(text: Iterable[str], first: int, count: int) -> schemas.TextPage:
    """Returns a page of the lines of a text."""
    lines, left, rest = list[str](), _MOST_CHARACTERS, islice(text, first, None)
    for line in islice(rest, count):
        lines.append(_cut(line))
        left -= len(lines[-1])
        if left < 0:
            break
    more = next(rest, None) is not None
    return schemas.TextPage(lines=lines, next_line=first + len(lines) if more else None)
