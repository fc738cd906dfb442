"""Common parts of all plots: colours, axes, buttons, and compact data. Values are plotly's JSON."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ACTIVITY_COLOURS = {
    "matrix": "#3b82c4",
    "vector": "#e0a030",
    "transfer": "#4aa564",
    "wait to send": "#c0504d",
    "wait to receive": "rgba(217, 136, 128, 0.45)",
    "wait for token": "#8e6bb0",
    "scalar or idle": "rgba(140, 150, 160, 0.18)",
}
"""Colours of the activities of a core: mid tones and tints, visible on white and on black."""

PALETTE = ("#3b82c4", "#e0a030", "#4aa564", "#c0504d", "#8e6bb0", "#8c6d5a", "#d177a8", "#7f8c8d", "#a5a83a", "#35a7b5")
COLOUR_SCALE = "Viridis"
SCALE_FROM_ZERO = (
    (0.0, ACTIVITY_COLOURS["scalar or idle"]),
    (0.004, "#440154"),
    (0.25, "#3b528b"),
    (0.5, "#21918c"),
    (0.75, "#5ec962"),
    (1.0, "#fde725"),
)
"""Colour scale Viridis with a transparent zero."""

_NAMED_ROWS = 64
_CLEAR = "rgba(0, 0, 0, 0)"
_MARGIN = {"l": 60, "r": 20, "t": 50, "b": 50}


@dataclass(frozen=True, slots=True, eq=False)
class CellTexts:
    """Texts of the cells of a table: `names[index[row, column]]`. JSON has `index` run-length encoded."""

    names: Sequence[str]
    index: npt.NDArray[np.int64]

    def as_json(self) -> dict[str, Any]:
        return {"names": list(self.names), "runs": [_runs(row) for row in self.index]}


def _runs(row: npt.NDArray[np.int64]) -> list[int]:
    """Encodes a row as value, length, value, length, ..."""
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    lengths = np.diff(np.append(first, len(row)))
    return np.stack([row[first], lengths], axis=1).ravel().tolist()


@dataclass(frozen=True, slots=True, eq=False)
class PlotFigure:
    """A plotly figure. `texts`: shown for the cell under the mouse, in all traces."""

    id: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    texts: CellTexts | None = None
    height: int = 460

    def as_json(self) -> dict[str, Any]:
        base: dict[str, Any] = {"margin": _MARGIN, "height": self.height, "hovermode": "closest"}
        base |= {"modebar": {"bgcolor": _CLEAR, "color": "#8793a0", "activecolor": "#3b82c4"}}
        clear = {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR}
        figure: dict[str, Any] = {"data": list(self.data), "layout": base | clear | dict(self.layout)}
        return figure | ({"texts": self.texts.as_json()} if self.texts is not None else {})


def make_axis(title: str, **more: Any) -> dict[str, Any]:
    """Returns a plotly axis."""
    return {"title": {"text": title}, "zeroline": False, "automargin": True, **more}


def make_trace_buttons(names: Sequence[str], per_button: int = 1) -> list[dict[str, Any]]:
    """Returns a button for each name, which shows its `per_button` traces and hides all others."""
    shown = [
        {
            "label": name,
            "method": "restyle",
            "args": [{"visible": [k // per_button == i for k in range(len(names) * per_button)]}],
        }
        for i, name in enumerate(names)
    ]
    return [make_menu(shown)]


def make_stack_buttons() -> list[dict[str, Any]]:
    """Returns two buttons: absolute bars, or each bar as 100 %."""
    choices = (("count", ""), ("share", "percent"))
    return [make_menu([{"label": n, "method": "relayout", "args": [{"barnorm": value}]} for n, value in choices])]


def make_menu(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a row of buttons above the plot."""
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 6}}
    return {"type": "buttons", "direction": "right", "showactive": True, "buttons": choices, **place}


def encode_bytes(values: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Encodes a table of bytes in base64, as plotly reads it."""
    text = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"dtype": "u1", "bdata": text, "shape": ", ".join(map(str, values.shape))}


def collect_texts(rows: Sequence[Sequence[str]]) -> CellTexts:
    """Collects the texts of the cells of a table."""
    names: dict[str, int] = {}
    index = np.array([[names.setdefault(cell, len(names)) for cell in row] for row in rows], np.int64)
    return CellTexts(list(names), index)


def round_for_colour(values: npt.NDArray[Any]) -> list[Any]:
    """Rounds to four digits, enough for a colour; NaN becomes a cell without colour."""
    return [[None if v != v else float(f"{v:.4g}") for v in row] for row in values.tolist()]


def round_ticks(largest: float, most: int = 6) -> list[float]:
    """Returns round numbers from 0 to at most `largest`: multiples of 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0]
    most = max(most, 2)
    power = 10.0 ** np.floor(np.log10(largest / most))
    step = next(power * k for k in (1, 2, 5, 10, 20, 50) if largest / (power * k) <= most - 1 + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(int(largest / step + 1e-9) + 1)]


def make_core_axis(cores: Sequence[int]) -> dict[str, Any]:
    """Returns the axis of a table with a row for each core that has work.

    Only as many cores are labelled as there is space for.
    """
    every = -(-len(cores) // _NAMED_ROWS)
    return make_axis(
        "core (those with work)",
        autorange="reversed",
        type="category",
        showgrid=False,
        tickmode="array",
        tickvals=[str(core) for core in cores[::every]],
        tickfont={"size": 10},
    )


def choose_time_unit(ns: float) -> tuple[str, float]:
    """Returns the unit in which a time is easy to read, and its length in ns."""
    return next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3)) if ns >= s), ("ns", 1.0))


def choose_byte_unit(size: float) -> tuple[str, float]:
    """Returns the unit in which a size is easy to read, and its number of bytes."""
    return next(((u, s) for u, s in (("MB", 1e6), ("kB", 1e3)) if size >= s), ("bytes", 1.0))
