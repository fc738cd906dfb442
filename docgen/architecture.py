"""Writes docs/reference/architecture.md: the fields of an architecture file, from raptor/target/arch."""

import io

from docgen import schema_table
from docgen.markdown import GENERATED_NOTE, format_code, format_table
from raptor.common.terminal.console import LiteralConsole
from raptor.compiler.analysis.peak_figures import compute_chip_figures
from raptor.target import arch as architectures
from raptor.target.arch.pimsim_schema import ArchFile
from raptor.target.arch.preset_sources import PRESET_SOURCES
from raptor.tools.cli.arch_view import show_figures

PAGE_HEAD = f"""# Architecture files

{GENERATED_NOTE.format("`raptor/target/arch`")}
An architecture file describes a chip. This page explains its fields and the figures that follow from them. It is the
file of the simulator pimsim-nn: JSON with the fields and defaults below. Each field has one unit.

- `--arch` takes a file, or the name of a preset. `--xbar`, `--cores`, `--xbars-per-core` and `--cell-bits` replace
  values of it.
- The network table that the file names is used as it is: by the mapping, the schedule, the output and the simulation. A
  table that is missing or incomplete is refused. Without `net_config_file_path`, the built-in mesh of `layout` is used.
- A file has at most 1 MiB, in UTF-8. The simulator ignores a misspelt field. RAPTOR refuses it; only `simulate` goes
  on, with a warning, and `check` reports it as a finding.
- `raptor arch show FILE` prints all values of a file and what follows from them ([below](#what-follows-from-a-file)).
  `raptor arch check FILE` tells what the simulator would do with them. `raptor arch new` writes a new file.
- The JSON schema is [arch.schema.json](../schemas/arch.schema.json).

## Presets
"""

FIGURES_SECTION = """## What follows from a file

`raptor arch show` begins with these figures, for elements of 8 bits or of `--bits`:

```console
$ raptor arch show bench | sed '/not modelled/q'
FIGURES_OF_BENCH
```

**The product** is an `mvmul` of one crossbar, alone. Its time is that of the matrix unit, from start to end. In a
program a core needs some cycles more: to start the instruction, and to notice its end at the next tick of its clock.
Input bits and rows go through the DACs slice by slice, and columns through the ADCs. Where the two stages overlap
(`pipeline_mode`), the time of a part is the time in which only this part works, so that the parts add up. Local
memory is read 8 times (the simulator's rule) and written once.

**The peak** counts products only, with 2 operations for each multiply-accumulate. Additions of partial sums, loads
and messages need time in addition. In the first line every crossbar is busy with its own product all the time. A core
cannot always do that, for two reasons. All inputs of its products go through the one port of its local memory. And it
can start at most `rob_size` instructions. The next lines show these two limits if they are lower. They assume array
groups of the best size, in which crossbars share an input. These are limits and not promises: products of a few large
groups also wait for each other at the port, and reach 80 to 100 % of them.

**TOPS/W** contains the energy of the products, and the static power that is [counted](../explanation/energy.md).
"""


def _shown() -> str:
    """Returns the output of `raptor arch show bench`, up to the first effect that is not modelled."""
    console = LiteralConsole()
    console.file, console.width = io.StringIO(), 100
    show_figures(compute_chip_figures(architectures.load("bench")), console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    last = next(k for k, line in enumerate(lines) if "not modelled" in line)
    return "\n".join(lines[: last + 1])


def render_page() -> str:
    rows = [(format_code(name), source.summary, "; ".join(source.source)) for name, source in PRESET_SOURCES.items()]
    presets = format_table(("preset", "what it describes", "where its numbers come from"), rows)
    return "\n".join(
        [
            PAGE_HEAD,
            presets,
            "`raptor arch show PRESET` also says what is *not* known.\n",
            FIGURES_SECTION.replace("FIGURES_OF_BENCH", _shown()),
            schema_table.format_model(ArchFile),
        ]
    )
