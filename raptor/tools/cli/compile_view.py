"""Terminal output of `raptor compile`: progress, and a summary table at the end."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from raptor.common.terminal.console import LiteralConsole
from raptor.output.compile_report import CompileReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor.api import Program
    from validator.checks import Finding

_MOST_NODES = 4


@contextmanager
def show_progress(*, quiet: bool, verbose: bool) -> Generator[Callable[[str], None]]:
    """Yields a callback for the name of each stage, shown on standard error: live on a terminal, or a line per stage.

    Into a pipe, or with `quiet`, nothing is shown, unless `verbose` asks for lines.
    """
    console = LiteralConsole(stderr=True)
    if verbose:
        yield _lines()
    elif quiet or not console.is_terminal:
        yield lambda _: None
    else:
        with console.status("starting") as status:
            yield lambda stage: status.update(f"{stage.replace('_', ' ')} ...")


def _lines() -> Callable[[str], None]:
    last = ""

    def line(stage: str) -> None:
        nonlocal last
        if stage not in (last, "verify"):
            print(f"raptor: {stage.replace('_', ' ')}", file=sys.stderr, flush=True)
        last = stage

    return line


def show_summary(program: "Program", output: Path) -> None:
    """Prints layers, matrices, crossbars, cores, instructions by opcode, memory, size of the output, time per stage."""
    report = program.report
    console = LiteralConsole()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in format_summary(report):
        table.add_row(name, value)
    size = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
    table.add_row("output", f"{output}/  {size / 1e6:.1f} MB")
    stages = ", ".join(f"{name.replace('_', ' ')} {s:.2f}" for name, s in program.seconds.items() if s >= 0.005)
    table.add_row("seconds", f"{sum(program.seconds.values()):.2f}  ({stages})")
    console.print(table, soft_wrap=True)
    for warning in report.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    if report.extended:
        needed = ", ".join(_needed(name, nodes) for name, nodes in report.extended.items())
        console.print(
            f"note: pimsim-nn does not load this program: {needed}; --isa base refuses such models", soft_wrap=True
        )


def _needed(name: str, nodes: "Sequence[str]") -> str:
    """Formats an instruction with the first nodes that need it."""
    more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    return f"{name} ({len(nodes)} node{'s' if len(nodes) > 1 else ''}: {', '.join(nodes[:_MOST_NODES])}{more})"


def show_findings(findings: "Sequence[Finding]") -> None:
    """Prints the findings of `raptor check` if one is worse than a note, otherwise only notes on the architecture."""
    from validator.checks import RULES, RuleTopic
    from validator.checks.findings_output import is_clean, show

    console = LiteralConsole()
    if not is_clean(findings):
        show(findings, console)
        return
    for finding in findings:
        if RULES[finding.rule].topic is RuleTopic.ARCHITECTURE:
            console.print(f"note: {finding.message}", soft_wrap=True)


def format_summary(report: CompileReport) -> Iterator[tuple[str, str]]:
    """Yields name and formatted value of each figure of the summary, in the order shown."""
    weighted = [layer for layer in report.layers if layer.matrices]
    yield "layers", f"{len(report.layers)}, {len(weighted)} of them on crossbars"
    yield "matrices", f"{report.matrices:,}"
    pace = "" if report.pace == "own" else f", times of {report.pace}"
    yield "mapping", f"{report.strategy}, tiles of {report.tile_channels or 'all'} channels{pace}"
    yield "crossbars", _part(report.xbars_used, report.xbars_available)
    yield "cores", _part(report.cores_used, report.cores_available)
    by_op = ", ".join(f"{op} {n:,}" for op, n in sorted(report.instructions.items(), key=lambda i: (-i[1], i[0])))
    yield "instructions", f"{report.instruction_count:,}  ({by_op})"
    yield "local memory", f"{report.peak_local_bytes:,} bytes in the fullest core"


def _part(used: int, available: int) -> str:
    return f"{used:,} of {available:,} ({used / available:.1%})"
