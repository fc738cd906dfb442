"""Writes JSON schemas of files and of the JSON of commands: `python -m docgen.json_schemas docs/schemas`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter

import validator.judge.validation_report
import validator.simulate.simulation_report
from raptor.compiler.analysis.explain import MappingExplanation
from raptor.compiler.analysis.inspection import ModelInspection
from raptor.mapping.mapping_file import MappingFile
from raptor.output import decoder_files, files, repair_files, resident_files, round_files
from raptor.output.compile_report import CompileReport
from raptor.output.trim_files import TrimTable
from raptor.target.arch.pimsim_schema import ArchFile
from raptor.target.chip_file import ChipFile
from raptor.target.device_file import DeviceFile
from raptor.tools.cli.arch_view import ArchReport
from raptor.tools.explore.results.study_report import StudyReport
from raptor.tools.harden.harden_model import HardeningReport
from raptor.tools.quantise import QuantisationReport
from raptor.tools.repair.measure_yield import YieldReport
from raptor.tools.reporting.figure_export import ComparisonNumbers, ReportNumbers
from raptor.tools.train.train_model import TrainingReport
from validator.accuracy.accuracy_report import AccuracyReport
from validator.checks.findings_output import FindingsReport
from validator.decoding.generation import GenerationReport

FILE_CLASSES: dict[str, type[BaseModel]] = {
    files.ARCH: ArchFile,
    files.CONFIG: files.SimulatorConfig,
    files.MEMORY: files.MemoryMap,
    files.LAYERS: files.ProbeList,
    files.TRIM: TrimTable,
    files.STEPS: files.StepTable,
    files.MAPPING: MappingFile,
    files.REPORT: CompileReport,
    files.MANIFEST: files.OutputManifest,
    files.ROUNDS: round_files.RoundList,
    files.RESIDENT: resident_files.ResidentMap,
    files.DECODER: decoder_files.DecoderFile,
    files.DEVICE: DeviceFile,
    repair_files.CHIP: ChipFile,
    repair_files.REPAIR: repair_files.RepairTable,
}
"""Schemas by name of the file in an output directory."""

COMMAND_CLASSES: dict[str, type] = {
    "accuracy": AccuracyReport,
    "arch show": ArchReport,
    "check": FindingsReport,
    "compare": ComparisonNumbers,
    "explain": MappingExplanation,
    "explore show": StudyReport,
    "generate": GenerationReport,
    "harden": HardeningReport,
    "inspect": ModelInspection,
    "quantize": QuantisationReport,
    "report": ReportNumbers,
    "simulate": validator.simulate.simulation_report.SimulationReport,
    "train": TrainingReport,
    "validate": validator.judge.validation_report.ValidationReport,
    "yield": YieldReport,
}
"""Classes of the JSON that commands write with `--json`, by command."""


def make_file_schema(model: type[BaseModel]) -> bytes:
    """Returns the JSON schema of a file, as JSON."""
    return _text(model.model_json_schema())


def make_command_schema(model: type) -> bytes:
    """Returns the JSON schema of the output of a command, as JSON: no additional fields, exactly one version."""
    found = TypeAdapter(model).json_schema(mode="serialization")
    for part in (found, *_definitions(found)):
        if "properties" in part:
            part["additionalProperties"] = False
    version = found["properties"].get("version")
    if version is not None:
        version["const"] = version["default"]
    return _text(found)


def _definitions(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from cast(dict[str, dict[str, Any]], found.get("$defs", {})).values()


def _text(found: dict[str, Any]) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def schema_file_name(name: str) -> str:
    """Returns the name of a schema file: `config.schema.json` for `config.json`, `check.schema.json` for `check`."""
    return f"{name.removesuffix('.json')}.schema.json"


def make_all_schemas() -> dict[str, bytes]:
    """Returns the contents of all schema files, by file name."""
    found = {schema_file_name(name): make_file_schema(model) for name, model in FILE_CLASSES.items()}
    return found | {command_schema_file(name): make_command_schema(model) for name, model in COMMAND_CLASSES.items()}


def command_schema_file(command: str) -> str:
    """Returns the name of the schema file of a command."""
    return schema_file_name(
        f"{command.replace(' ', '-')}-command" if f"{command}.json" in FILE_CLASSES else command.replace(" ", "-")
    )


def write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_all_schemas().items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
