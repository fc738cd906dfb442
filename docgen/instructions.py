"""Writes docs/reference/instructions.md: the instruction set, from raptor/target/isa.py."""

from docgen.markdown import GENERATED_NOTE, format_code, format_table
from raptor.target.isa import (
    INSTRUCTIONS,
    Instruction,
    Operand,
    Unit,
)

HEAD = f"""# Instructions

{GENERATED_NOTE.format("`raptor/target/isa.py`")}
A core has 32 registers of 32 bits, a local memory, crossbars in array groups, and four units that execute
instructions: scalar, matrix, vector and transfer. Addresses count bytes. Lengths count elements (`len` of vector
instructions) or bytes (`size`). A vector instruction and `mvmul` read their operands from local memory, at the
addresses in registers.

*slot* is the field of the binary record. A record (`.pim`) has `opcode`, `rd`, `rs1`, one unused byte, and then four
32-bit integers `a`, `b`, `c`, `d`. In JSON the key of an operand is its name, unless another key is given.

Instructions marked *extended* are RAPTOR's own. pimsim-nn refuses programs that have them. `raptor simulate` gives
them the time and the energy of an instruction of the same shape. `--isa base` compiles without them.
"""


def render_page() -> str:
    return "\n".join([HEAD, _index(), *(_chapter(unit) for unit in Unit)])


def _index() -> str:
    rows = [
        (f"[`{i.name}`](#{i.name})", str(i.opcode), str(i.unit), format_code(i.meaning), "yes" if i.extension else "")
        for i in INSTRUCTIONS
    ]
    return format_table(("instruction", "opcode", "unit", "what", "extended"), rows)


def _chapter(unit: Unit) -> str:
    return "\n".join([f"## {str(unit).capitalize()} unit\n", *(_entry(i) for i in INSTRUCTIONS if i.unit is unit)])


def _entry(instruction: Instruction) -> str:
    extended = ", extended" if instruction.extension else ""
    head = f"### {instruction.name}\n\n`{instruction.meaning}` (opcode {instruction.opcode}{extended})\n"
    if not instruction.operands:
        return f"{head}\nNo operands.\n"
    rows = [
        (
            format_code(o.name),
            _slot(o),
            f"{o.low} to {o.high}",
            f"{o.meaning}; {o.kind}" if o.is_register else o.meaning,
        )
        for o in instruction.operands
    ]
    return f"{head}\n{format_table(('operand', 'slot', 'range', 'meaning'), rows)}"


def _slot(operand: Operand) -> str:
    keys = "" if operand.json == (operand.name,) else " (JSON: " + ", ".join(map(format_code, operand.json)) + ")"
    return format_code(operand.slot) + keys
