"""Writes docs/architecture.md: the fields of an architecture file, from raptor/target/arch."""

import io

from docgen import schema_table
from docgen.markdown import NOTE, code, table
from raptor.analysis.arch_figures import figures_of
from raptor.cli.arch_view import show_figures
from raptor.common.console import Console
from raptor.target import arch as architectures
from raptor.target.arch.schema import ArchFile
from raptor.target.arch.sources import SOURCES

HEAD = f"""# Architecture files

{NOTE.format("`raptor/arch`")}
An architecture file describes a chip. It is the file of the simulator pimsim-nn: JSON with the fields and defaults
below. Each field has one unit.

- `--arch` takes a file, or the name of a preset. `--xbar`, `--cores`, `--xbars-per-core` and `--cell-bits` replace
  values of it.
- The network table that the file names is used as it is: by the mapping, the schedule, the output and the simulation. A
  table that is missing or incomplete is refused. Without `net_config_file_path`, the built-in mesh of `layout` is used.
- The simulator ignores a misspelt field. RAPTOR refuses it.
- `raptor arch show FILE` prints all values of a file and what follows from them ([below](#what-follows-from-a-file)).
  `raptor arch check FILE` tells what the simulator would do with them. `raptor arch new` writes a file to start from.
- The JSON schema is [arch.schema.json](schemas/arch.schema.json).

## Presets
"""

FIGURES = """## What follows from a file

`raptor arch show` begins with it, for elements of 8 bits or those of `--bits`:

```console
$ raptor arch show bench | sed '/not modelled/q'
FIGURES_OF_BENCH
```

The product is an `mvmul` of one crossbar, alone, as the simulator takes it from the start of its unit to its end; a
core adds some cycles to enter it, and notices its end when its clock ticks. Input bits and rows go through the DACs
slice by slice, and columns through the ADCs; where the two stages overlap (`pipeline_mode`), the time of a part is
that during which nothing else goes on, so that parts add up. Local memory is read 8 times (the simulator's rule) and
written once.

Peak is 2 operations for each multiply-accumulate of products alone: additions of partial sums, loads and messages
come on top. The first line has every crossbar busy with a product of its own all the time. A core cannot always have
that: it has one port of local memory, through which the inputs of all its products go, and at most `rob_size`
instructions begun. The next lines are what these leave, with crossbars that share an input in array groups of the
best size, and are shown where they are less. They are limits, not promises: products of few large groups also wait
for each other at the port, and reach 80 to 100 % of them. TOPS/W has the energy of the products and the static power
that is [counted](energy.md).
"""


def _shown() -> str:
    """Returns the output of the command above on the terminal of the tests."""
    console = Console()
    console.file, console.width = io.StringIO(), 100
    show_figures(figures_of(architectures.load("bench")), console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    last = next(k for k, line in enumerate(lines) if "not modelled" in line)
    return "\n".join(lines[: last + 1])


def page() -> str:
    rows = [(code(name), source.summary, "; ".join(source.source)) for name, source in SOURCES.items()]
    presets = table(("preset", "what it describes", "where its numbers come from"), rows)
    return "\n".join(
        [
            HEAD,
            presets,
            "`raptor arch show PRESET` also says what is *not* known.\n",
            FIGURES.replace("FIGURES_OF_BENCH", _shown()),
            schema_table.section(ArchFile),
        ]
    )
