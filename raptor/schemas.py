"""Writes JSON schemas of files and of the JSON of commands: `python -m raptor.schemas docs/schemas`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter

import validator.simulate.simulation_report
import validator.validation_report
from raptor.analysis.explain import Explanation
from raptor.analysis.inspection import Inspection
from raptor.cli.arch_view import ShownChip
from raptor.explore.report import StudyReport
from raptor.mapping.file import MappingFile
from raptor.output import files, round_files
from raptor.output.compile_report import CompileReport
from raptor.quantise import QuantisationReport
from raptor.reporting.export import ComparisonNumbers, ReportNumbers
from raptor.target.arch.schema import ArchFile
from raptor.target.device_file import DeviceFile
from validator.accuracy.report import AccuracyReport
from validator.checks.findings_text import Findings

SCHEMAS: dict[str, type[BaseModel]] = {
    files.ARCH: ArchFile,
    files.CONFIG: files.Config,
    files.MEMORY: files.Memory,
    files.LAYERS: files.Layers,
    files.STEPS: files.Steps,
    files.MAPPING: MappingFile,
    files.REPORT: CompileReport,
    files.MANIFEST: files.Manifest,
    files.ROUNDS: round_files.Rounds,
    files.DEVICE: DeviceFile,
}
"""Schemas by name of the file in an output directory."""

COMMANDS: dict[str, type] = {
    "accuracy": AccuracyReport,
    "arch show": ShownChip,
    "check": Findings,
    "compare": ComparisonNumbers,
    "explain": Explanation,
    "explore show": StudyReport,
    "inspect": Inspection,
    "quantize": QuantisationReport,
    "report": ReportNumbers,
    "simulate": validator.simulate.simulation_report.SimulationReport,
    "validate": validator.validation_report.ValidationReport,
}
"""Classes of the JSON that commands write with `--json`, by command."""


def schema(model: type[BaseModel]) -> bytes:
    """Returns the JSON schema of a file, as JSON."""
    return _text(model.model_json_schema())


def command_schema(model: type) -> bytes:
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


def file_name(name: str) -> str:
    """Returns the name of a schema file: `config.schema.json` for `config.json`, `check.schema.json` for `check`."""
    return f"{name.removesuffix('.json')}.schema.json"


def all_schemas() -> dict[str, bytes]:
    """Returns the contents of all schema files, by file name."""
    found = {file_name(name): schema(model) for name, model in SCHEMAS.items()}
    return found | {schema_of(name): command_schema(model) for name, model in COMMANDS.items()}


def schema_of(command: str) -> str:
    """Returns the name of the schema file of a command."""
    return file_name(
        f"{command.replace(' ', '-')}-command" if f"{command}.json" in SCHEMAS else command.replace(" ", "-")
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in all_schemas().items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
