"""Plots of the page of a study: trade-offs, parallel coordinates, importance of parameters, history."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results.pareto_front import objective_matrix, trace_hypervolume
from raptor.tools.explore.study.search_space import StudyParameter
from raptor.tools.explore.study.study_file import Study
from raptor.tools.reporting.plot_parts import PALETTE, PlotFigure, make_axis, make_menu

_MOST_LINES = 300
_MOST_DOTS = 4000
"""Largest number of dots of a trace; a browser takes 0.2 ms for each."""
_GREY, _BLUE, _RED = "rgba(140, 150, 160, 0.55)", PALETTE[0], PALETTE[3]


def draw_trade_offs(study: Study, outcomes: Sequence[TrialOutcome], best: Sequence[TrialOutcome]) -> PlotFigure:
    """Draws a scatter plot of two objectives, with the Pareto front on top; buttons select the pair."""
    names = list(study.objectives)
    pairs = list(combinations(names, 2)) or [("trial", names[0])]
    points = {repr(o.trial.point): o for o in reversed(outcomes)}.values()
    kinds = (
        (*_evenly("breaks a limit", [o for o in points if o.has_figures and not o.is_feasible]), _GREY, 6),
        (*_evenly("feasible", [o for o in points if o.is_feasible]), _BLUE, 7),
        ("front", list(best), _RED, 10),
    )
    data = [
        _dots(study, name, chosen, colour, size) | _places(chosen, pairs[0]) for name, chosen, colour, size in kinds
    ]
    layout: dict[str, Any] = {"xaxis": _axis(pairs[0][0]), "yaxis": _axis(pairs[0][1])}
    if len(pairs) > 1:
        layout["updatemenus"] = [make_menu([_choice([chosen for _, chosen, *_ in kinds], pair) for pair in pairs])]
    return PlotFigure("trade-offs", data, layout, height=520)


def _evenly(name: str, points: Sequence[TrialOutcome]) -> tuple[str, Sequence[TrialOutcome]]:
    """Returns name and points of a trace; too many points are thinned evenly, and the name states that."""
    if len(points) <= _MOST_DOTS:
        return name, points
    shown = points[:: -(-len(points) // _MOST_DOTS)]
    return f"{name} ({len(shown)} of {len(points)})", shown


def _axis(name: str) -> dict[str, Any]:
    if name == "trial":
        return make_axis(name)
    return make_axis(name, type="log", exponentformat="power", dtick="D1")


def _choice(kinds: Sequence[Sequence[TrialOutcome]], pair: tuple[str, str]) -> dict[str, Any]:
    """Makes a button that moves all dots to their positions for a pair of objectives."""
    places = [_places(chosen, pair) for chosen in kinds]
    moved = {key: [place[key] for place in places] for key in places[0]}
    titles = {"xaxis.title.text": pair[0], "yaxis.title.text": pair[1]}
    return {"label": f"{pair[1]} over {pair[0]}", "method": "update", "args": [moved, titles]}


def _places(chosen: Sequence[TrialOutcome], pair: tuple[str, str]) -> dict[str, Any]:
    return {"x": [_figure(o, pair[0]) for o in chosen], "y": [_figure(o, pair[1]) for o in chosen]}


def _dots(study: Study, name: str, chosen: Sequence[TrialOutcome], colour: str, size: int) -> dict[str, Any]:
    """Makes a trace of dots without positions. The browser assembles the hover text from `customdata`."""
    parameters = [p.name for p in study.space]
    hover = ", ".join(f"{name} %{{customdata[{k}]}}" for k, name in enumerate(parameters, 1))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "customdata": [[o.trial.number, *(o.trial.point[name] for name in parameters)] for o in chosen],
        "hovertemplate": f"trial %{{customdata[0]}}: {hover}<br>%{{xaxis.title.text}} %{{x:.5g}}"
        "<br>%{yaxis.title.text} %{y:.5g}<extra></extra>",
        "marker": {"color": colour, "size": size, "line": {"width": 0}},
    }


def _figure(one: TrialOutcome, name: str) -> float:
    return float(one.trial.number) if name == "trial" else float(f"{one.figures[name]:.6g}")


def draw_parallel(study: Study, outcomes: Sequence[TrialOutcome], best: Sequence[TrialOutcome]) -> PlotFigure:
    """Draws each point as a line across parallel axes, one per parameter and objective; the front is red."""
    shown_apart = {o.trial.number for o in best}
    others = [o for o in outcomes if o.is_feasible and o.trial.number not in shown_apart]
    every = max(1, -(-len(others) // _MOST_LINES))
    shown = others[::every] + list(best)
    places = [_parameter_axis(p, shown) for p in study.space] + [_figure_axis(name, shown) for name in study.objectives]
    names = [p.name for p in study.space] + list(study.objectives)
    data = [
        _lines("feasible", others[::every], places, "rgba(59, 130, 196, 0.3)", 1),
        _lines("front", best, places, _RED, 2),
    ]
    notes = [
        {"x": k, "y": y, "text": text, "showarrow": False, "yshift": 12 if y else -12, "font": {"size": 11}}
        for k, (_, low, high) in enumerate(places)
        for y, text in ((0, low), (1, high))
    ]
    ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names, "side": "top"}
    layout = {
        "xaxis": make_axis("", **ticks, range=[-0.3, len(names) - 0.7]),
        "yaxis": make_axis("", showticklabels=False, range=[-0.12, 1.12]),
        "annotations": notes,
        "margin": {"l": 30, "r": 30, "t": 90, "b": 30},
    }
    return PlotFigure("parallel", data, layout, height=480)


AxisPosition = tuple[Callable[[TrialOutcome], float], str, str]
"""Function from an outcome to its height on an axis (0 to 1), and the labels of both ends of the axis."""


def _parameter_axis(p: StudyParameter, shown: Sequence[TrialOutcome]) -> AxisPosition:
    if p.values:
        last = max(1, len(p.values) - 1)
        at = {repr(v): k / last for k, v in enumerate(p.values)}
        return lambda o: at[repr(o.trial.point[p.name])], str(p.values[0]), str(p.values[-1])
    span = (p.high - p.low) or 1.0
    return lambda o: (float(o.trial.point[p.name]) - p.low) / span, f"{p.low:g}", f"{p.high:g}"


def _figure_axis(name: str, shown: Sequence[TrialOutcome]) -> AxisPosition:
    found = [o.figures[name] for o in shown] or [0.0]
    low, high = min(found), max(found)
    span = (high - low) or 1.0
    return lambda o: (o.figures[name] - low) / span, f"{low:.4g}", f"{high:.4g}"


def _lines(
    name: str, chosen: Sequence[TrialOutcome], places: Sequence[AxisPosition], colour: str, width: int
) -> Mapping[str, Any]:
    """Makes one trace with all lines, separated by gaps."""
    heights = [[round(height(o), 4) for height, *_ in places] + [None] for o in chosen]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for _ in chosen for x in [*range(len(places)), None]],
        "y": [y for line in heights for y in line],
        "line": {"color": colour, "width": width},
        "hoverinfo": "skip",
    }


def draw_importance(found: Mapping[str, Mapping[str, float]]) -> PlotFigure:
    """Draws a bar for each parameter and objective. `found`: shares by objective, then by parameter."""
    data = [
        {"type": "bar", "name": name, "x": list(shares), "y": [round(v, 4) for v in shares.values()]}
        for name, shares in found.items()
    ]
    layout: dict[str, Any] = {
        "barmode": "group",
        "xaxis": make_axis("", type="category"),
        "yaxis": make_axis("share of the spread"),
    }
    layout["colorway"] = list(PALETTE)
    return PlotFigure("importance", data, layout, height=380)


def draw_history(study: Study, outcomes: Sequence[TrialOutcome]) -> PlotFigure:
    """Draws over trials: the hypervolume, and the best value of each objective so far relative to its final best."""
    volumes = trace_hypervolume(study, outcomes)
    data = [_history("hypervolume", volumes.tolist(), 3)]
    feasible = [i for i, o in enumerate(outcomes) if o.is_feasible]
    table = objective_matrix(study, [outcomes[i] for i in feasible])
    for k, name in enumerate(study.objectives):
        best = np.full(len(outcomes), np.nan)
        if feasible:
            best[feasible] = np.minimum.accumulate(table[:, k])
            best = _filled(best)
        ratio = best / best[-1] if feasible and best[-1] else best
        data.append(_history(f"{name}, best so far / best", ratio.tolist(), 1.5))
    layout = {"xaxis": make_axis("trial"), "yaxis": make_axis("share"), "colorway": list(PALETTE)}
    return PlotFigure("history", data, layout, height=380)


def _filled(values: np.ndarray) -> np.ndarray:
    """Returns the values with each NaN replaced by the last number before it."""
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.accumulate(known)
    return np.where(last >= 0, values[np.maximum(last, 0)], np.nan)


def _history(name: str, values: Sequence[float], width: float) -> Mapping[str, Any]:
    """Makes a step plot; inside of runs of equal values, points are dropped."""
    kept = [
        i
        for i, v in enumerate(values)
        if v == v and (i in (0, len(values) - 1) or v != values[i - 1] or v != values[i + 1])
    ]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": kept,
        "y": [float(f"{values[i]:.5g}") for i in kept],
        "line": {"width": width, "shape": "hv"},
    }
