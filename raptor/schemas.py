"""JSON schemas of the output directory's files: `python -m raptor.schemas docs/schemas` writes them."""

import sys
from pathlib import Path

import orjson
from pydantic import BaseModel

from raptor import files
from raptor.arch import ArchFile
from raptor.report import Report

SCHEMAS: dict[str, type[BaseModel]] = {
    files.ARCH: ArchFile,
    files.CONFIG: files.Config,
    files.MEMORY: files.Memory,
    files.LAYERS: files.Layers,
    files.STEPS: files.Steps,
    files.REPORT: Report,
    files.MANIFEST: files.Manifest,
}


def schema(model: type[BaseModel]) -> bytes:
    """The JSON schema of one file, as text that diffs."""
    return orjson.dumps(model.model_json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def file_name(name: str) -> str:
    """`config.schema.json` for `config.json`."""
    return name.replace(".json", ".schema.json")


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in SCHEMAS.items():
        (folder / file_name(name)).write_bytes(schema(model))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
