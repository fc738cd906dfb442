"""Prints the quantisation noise of each layer as a table, and writes it as JSON."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from raptor.common.files import file_access
from raptor.common.terminal.abbreviation import abbreviate_names
from raptor.common.terminal.console import LiteralConsole
from raptor.common.terminal.table_width import fit_table
from raptor.tools.quantise import PolicySearch, QuantisationReport
from raptor.tools.quantise.quantisation import QuantisedLayer

_WORST = 10
_MOST_NODES = 6
_HEADS = ("layer", "operator", "weights", "result", "scale", "zero point", "own", "SNR")
_EXPENDABLE = ("zero point", "scale", "result", "weights")


def write_quantisation(path: Path, report: QuantisationReport) -> None:
    """Writes a report as JSON; `-` is standard output."""
    file_access.print_or_write("--json", path, file_access.model_to_json(report))


def show_quantisation(report: QuantisationReport, target: Path, console: LiteralConsole, *, every: bool) -> None:
    """Prints the layers (most noise first), nodes that stay float, and the size of the file. `every`: all layers."""
    if report.search is not None:
        _show_search(report.search, console)
    worst = sorted(report.layers, key=lambda x: (x.snr_db is None, x.snr_db or 0.0))
    shown = worst if every else worst[:_WORST]
    names = abbreviate_names([layer.node for layer in shown], console.width // 3)
    console.print("Signal to noise of each layer against the float model, in dB, worst first", style="bold")
    console.print(fit_table(_HEADS, list(_rows(shown, names)), console.width, _EXPENDABLE).table)
    if len(shown) < len(worst):
        console.print(f"and {len(worst) - len(shown)} more: --all")
    console.print("SNR: with all layers quantised; own: if the layer reads the quantised values of the float model")
    console.print()
    for line in _totals(report, target):
        console.print(line, soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _show_search(search: PolicySearch, console: LiteralConsole) -> None:
    """Prints the steps of a search for bits, and the latency or energy that it has reached."""
    unit, factor = {"latency": ("us", 1e-3), "energy": ("uJ", 1e-6)}[search.goal]
    names = abbreviate_names([step.layer for step in search.steps], console.width // 3)
    console.print(f"Steps to {search.budget:g} of the {search.goal}", style="bold")
    heads = ("layer", "operand", "bits", unit, "share", "noise")
    rows = [
        (
            names[s.layer],
            s.operand,
            f"{s.bits}",
            f"{s.cost * factor:.3f}",
            f"{s.cost / search.base:.3f}",
            f"{s.noise:.2%}",
        )
        for s in search.steps
    ]
    console.print(fit_table(heads, rows, console.width, ()).table)
    console.print(
        f"{search.goal}: {search.reached * factor:.3f} {unit} of {search.base * factor:.3f} with 8 bits, share "
        f"{search.ratio:.3f}; {search.compiled} programs tried",
        soft_wrap=True,
    )
    console.print("noise: at the outputs, by this step alone, as a share of their squares")
    console.print()


def _rows(layers: list[QuantisedLayer], names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for x in layers:
        bits = ("" if x.weight_bits is None else f"{x.weight_bits} bits", f"{x.bits} bits")
        numbers = (f"{x.scale:.3g}", str(x.zero_point), _decibels(x.own_snr_db), _decibels(x.snr_db))
        yield (names[x.node], x.op_type, *bits, *numbers)


def _decibels(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f}"


def _totals(report: QuantisationReport, target: Path) -> Iterator[str]:
    samples = "standard normal samples" if report.data is None else f"samples of {report.data}"
    yield f"outputs: {_decibels(report.snr_db)} dB, on {report.samples} {samples}"
    if report.floats:
        first = ", ".join(f"{n.node} ({n.op_type})" for n in report.floats[:_MOST_NODES])
        more = f" and {len(report.floats) - _MOST_NODES} more" if len(report.floats) > _MOST_NODES else ""
        yield f"left in float: {first}{more}"
    yield f"{target}: {report.quantised_bytes / 1e6:.2f} MB, from {report.float_bytes / 1e6:.2f} MB"
