"""Writes docs/reference/outputs.md: the JSON that commands write, field by field."""

from docgen import json_schemas, schema_table
from docgen.markdown import GENERATED_NOTE
from raptor.target.arch.pimsim_schema import ArchFile

HEAD = f"""# JSON of commands, field by field

{GENERATED_NOTE.format("the classes that the commands write")}
This page is for programs that read the results of RAPTOR. Commands with `--json` write one object each, in UTF-8. It
goes to a file, or with `--json -` to standard output, which then contains nothing else.

- `version` is a whole number that changes when fields do.
- Equal runs write equal bytes, except for `seconds` (wall times, in `simulate` and `validate`).
- Paths are written as they were given. NaN and infinity are written as `null`.
- `strategy` is the method that made a mapping (`--mapping rows`), also for a mapping that was stored and read again.
- `xbars` are crossbars, as in `--xbar` and `--xbars-per-core`.
- Times are in ns, energies in pJ, wall times in s.
"""


def render_page() -> str:
    return "\n".join([HEAD, *map(_command, json_schemas.COMMAND_CLASSES)])


def _command(name: str) -> str:
    model, schema = json_schemas.COMMAND_CLASSES[name], json_schemas.command_schema_file(name)
    head = f"## raptor {name}\n\nSchema: [{schema}](../schemas/{schema})\n\n"
    if model is ArchFile:
        return f"{head}The [architecture file](architecture.md) itself, as pimsim-nn reads it, which has no version.\n"
    return head + schema_table.format_model(model, level=3)
