"""Writes docs/reference/formats.md: the JSON files of an output directory, field by field."""

import inspect

from pydantic import BaseModel

from docgen import json_schemas, schema_table
from docgen.markdown import GENERATED_NOTE
from raptor.output import files

HEAD = f"""# JSON files, field by field

{GENERATED_NOTE.format("`raptor/output/files.py` and `raptor/output/compile_report.py`")}
This page lists the fields of the JSON files that `raptor compile` writes. What each file is for, and the formats that
are not JSON, are in [files of an output directory](files.md). `arch.json` has [its own page](architecture.md).
"""


def render_page() -> str:
    return "\n".join([HEAD, *(_file(n, m) for n, m in json_schemas.FILE_CLASSES.items() if n != files.ARCH)])


def _file(name: str, model: type[BaseModel]) -> str:
    schema = json_schemas.schema_file_name(name)
    body = schema_table.format_model(model, level=3)
    return inspect.cleandoc(f"## {name}\n\nSchema: [{schema}](../schemas/{schema})") + f"\n\n{body}"
