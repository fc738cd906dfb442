"""Writes docs/outputs.md: the JSON that commands write, field by field."""

from docgen import schema_table
from docgen.markdown import NOTE
from raptor import schemas
from raptor.target.arch import ArchFile

HEAD = f"""# JSON of commands, field by field

{NOTE.format("the classes that the commands write")}
Commands with `--json` write one object each, in UTF-8: to a file, or with `--json -` to standard output, where nothing
else goes then. `version` is a whole number that changes when fields do. Equal runs write equal bytes but for `seconds`
(wall times, in `simulate` and `validate`). Paths are as they were given. What is not a number, or infinite, is `null`.

`strategy` is the name by which a mapping was made (`--mapping rows`), also of one that was stored and is read. `xbars`
are crossbars, as in `--xbar` and `--xbars-per-core`. Times are in ns, energies in pJ, wall times in s.
"""


def page() -> str:
    return "\n".join([HEAD, *map(_command, schemas.COMMANDS)])


def _command(name: str) -> str:
    model, schema = schemas.COMMANDS[name], schemas.schema_of(name)
    head = f"## raptor {name}\n\nSchema: [{schema}](schemas/{schema})\n\n"
    if model is ArchFile:
        return f"{head}The [architecture file](architecture.md) itself, as pimsim-nn reads it, which has no version.\n"
    return head + schema_table.section(model, level=3)
