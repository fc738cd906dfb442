"""docs/architecture.md: the fields of an architecture file, from raptor/arch."""

from docgen import schema_table
from docgen.markdown import NOTE, code, table
from raptor.arch.schema import ArchFile
from raptor.arch.sources import SOURCES

HEAD = f"""# Architecture files

{NOTE.format("`raptor/arch`")}
An architecture file is the simulator's: JSON, these fields, these defaults, one unit each. `--arch` takes a file or the
name of a preset; `--xbar`, `--cores`, `--xbars-per-core` and `--cell-bits` override what it says. A misspelt field,
which the simulator ignores, is refused. `raptor arch show FILE` prints all values of a file, `raptor arch check FILE`
what the simulator would make of them, `raptor arch new` writes a file to start from; its JSON schema is
[arch.schema.json](schemas/arch.schema.json).

## Presets
"""


def page() -> str:
    rows = [(code(name), source.summary, "; ".join(source.source)) for name, source in SOURCES.items()]
    presets = table(("preset", "what it describes", "where its numbers come from"), rows)
    return "\n".join(
        [HEAD, presets, "`raptor arch show PRESET` also says what is *not* known.\n", schema_table.section(ArchFile)]
    )
