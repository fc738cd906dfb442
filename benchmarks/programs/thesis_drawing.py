"""Draws the figures of `thesis_figures` as SVG, readable on light and on dark pages."""

# matplotlib declares only some of its parameters.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.programs.thesis_figures import ChipInference, CompileSeconds, InstructionMix

INK, PAPER, FAINT = "#1f2328", "#ffffff", "#d1d9e0"
DARK_COLOURS = {INK: "#e6edf3", PAPER: "#161b22", FAINT: "#3d444d"}
"""Colours for readers who prefer dark pages. Other colours suit both."""
COLOURS = {
    "ld": "#1f83c4",
    "st": "#56b4e9",
    "send": "#d55e00",
    "recv": "#e69f00",
    "mvmul": "#009e73",
    "vvadd": "#cc79a7",
    "other": "#8c959f",
}
LINE_STYLES = {"pixelwise": ("#d55e00", "s"), "raptor": ("#1f83c4", "o"), "rows": ("#009e73", "^")}
LOWERINGS = {"pixelwise": "pixel by pixel", "raptor": "channel by channel"}
"""Names of the thesis's original and new implementation."""
SHOWN_INSTRUCTIONS = ("ld", "st", "send", "recv", "mvmul", "vvadd")
"""Instructions of figures 5.2 and 5.3: without `sldi`, as in the thesis, and without some rare ones."""

mpl.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "raptor",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": PAPER,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "grid.color": FAINT,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw_shares(points: Sequence["InstructionMix"], path: Path) -> None:
    """Draws figure 5.2: bars of 100 %, one panel for each lowering."""
    figure, axes = make_panels(1, 2, (9, 4), sharey=True)
    for axis, mapping in zip(axes, ("pixelwise", "raptor"), strict=True):
        chosen = [p for p in points if p.mapping == mapping]
        totals = [sum(p.shown) + p.other for p in chosen]
        below = [0.0] * len(chosen)
        for i, name in enumerate(COLOURS):
            amounts = [[*p.shown, p.other][i] for p in chosen]
            heights = [100 * n / total for n, total in zip(amounts, totals, strict=True)]
            axis.bar([p.width for p in chosen], heights, 0.75, below, color=COLOURS[name], label=name)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axis.set(title=LOWERINGS[mapping], xlabel="width of the image", xticks=[p.width for p in chosen])
    axes[0].set(ylabel="share of the instructions, %", ylim=(0, 100))
    axes[1].legend(*_reversed(axes[1]), loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, path)


def _reversed(axis: Any) -> tuple[list[Any], list[str]]:
    """Returns legend entries in the order in which the bars are stacked, the top one first."""
    handles, labels = axis.get_legend_handles_labels()
    return handles[::-1], labels[::-1]


def draw_counts(points: Sequence["InstructionMix"], path: Path) -> None:
    """Draws figure 5.3: a panel for each instruction, a line for each lowering."""
    figure, axes = make_panels(2, 3, (9, 5.4), sharex=True, sharey=True)
    for i, (axis, name) in enumerate(zip(axes, SHOWN_INSTRUCTIONS, strict=True)):
        for mapping, label in LOWERINGS.items():
            chosen = [p for p in points if p.mapping == mapping]
            _line(axis, mapping, [p.width for p in chosen], [p.shown[i] for p in chosen], label)
        axis.set(title=name, yscale="log", xticks=sorted({p.width for p in points}))
        axis.grid(axis="y")
    for axis in axes[3:]:
        axis.set_xlabel("width of the image")
    figure.supylabel("instructions", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, path)


def draw_seconds(points: Sequence["CompileSeconds"], size: str, path: Path) -> None:
    """Draws figures 5.4 and 5.5: seconds of both lowerings, and their ratio."""
    figure, (left, right) = make_panels(1, 2, (9, 3.6))
    sizes = [p.size for p in points]
    for mapping, label in LOWERINGS.items():
        _line(left, mapping, sizes, [p.by_mapping[mapping] for p in points], label)
    left.set(xlabel=size, ylabel="compile time, s of the processor", xticks=sizes, ylim=(0, None))
    left.legend()
    right.plot(sizes, [p.ratio for p in points], color=INK, marker="o")
    top = max(2, 1.1 * max(p.ratio for p in points))
    right.set(xlabel=size, ylabel="times as long, pixel by pixel", xticks=sizes, ylim=(0, top))
    right.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    for axis in (left, right):
        axis.grid(axis="y")
    save_figure(figure, path)


PRINTED_POINTS = {
    "RAPTOR, printed": ("X", 200, 2070.0, 200, 0.025),
    "PIMCOMP, printed": ("P", 160, 103.0, 150, 0.79),
}
"""Figures in the thesis's text on figure A.3: a marker, cores and samples/s, cores and µWh."""


def draw_resnet(points: Sequence["ChipInference"], path: Path) -> None:
    """Draws figure A.3: samples per second, and energy of a sample, over the cores of the chip."""
    figure, (left, right) = make_panels(1, 2, (9, 4.4))
    for mapping in ("rows", "raptor"):
        for widths in (True, False):
            chosen = [p for p in points if (p.mapping, p.widths) == (mapping, widths)]
            cores = [p.cores for p in chosen]
            label = f"{mapping}{'' if widths else ', without setbw'}"
            style = {} if widths else {"linestyle": "--", "markerfacecolor": PAPER}
            _line(left, mapping, cores, [p.samples_per_s for p in chosen], label, **style)
            _line(right, mapping, cores, [p.energy_uwh for p in chosen], label, **style)
    for label, (marker, cores, rate, energy_cores, energy) in PRINTED_POINTS.items():
        left.plot(cores, rate, marker, color=INK, markersize=9, label=label)
        right.plot(energy_cores, energy, marker, color=INK, markersize=9, label=label)
    left.set(xlabel="cores", ylabel="samples/s", yscale="log")
    right.set(xlabel="cores", ylabel="energy of a sample, µWh", yscale="log")
    for axis in (left, right):
        axis.grid(axis="y")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    save_figure(figure, path)


def _line(axis: Any, mapping: str, x: Sequence[float], y: Sequence[float], label: str, **style: Any) -> None:
    colour, marker = LINE_STYLES[mapping]
    axis.plot(x, y, color=colour, marker=marker, markersize=5, label=label, **style)


def make_panels(rows: int, cols: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Any]]:
    figure = Figure(size, layout="constrained")
    return figure, list(figure.subplots(rows, cols, squeeze=False, **options).flat)


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure. Equal figures give equal bytes: no date, and identifiers from a fixed salt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    text = path.read_text()
    head, rest = text.split("<defs>", 1)
    path.write_text(f"{head}<style>{dark_style(DARK_COLOURS)}</style>\n <defs>{rest}")


def dark_style(colours: Mapping[str, str]) -> str:
    rules = (
        f'[style*="{attribute}: {light}"]{{{attribute}:{dark}!important}}'
        for light, dark in colours.items()
        for attribute in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{''.join(rules)}}}"
