"""The page of a study as one self-contained HTML file."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson

from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results import study_figures
from raptor.tools.explore.results.parameter_importance import MIN_TRIALS, compute_importances
from raptor.tools.explore.results.pareto_front import pareto_front
from raptor.tools.explore.results.result_tables import FlatRow
from raptor.tools.explore.study.study_file import Study
from raptor.tools.reporting.report_page import render_page, to_script_json

_BETWEEN = " --"


def render_study_page(study: Study, outcomes: Sequence[TrialOutcome], rows: Sequence[FlatRow]) -> str:
    """Returns the HTML page of a study. `rows`: its points, see `raptor.tools.explore.results.result_tables.rows`."""
    best = pareto_front(study, outcomes)
    shares = compute_importances(study, outcomes)
    drawn = [study_figures.draw_history(study, outcomes)] if outcomes else []
    if any(o.has_figures for o in outcomes):
        drawn += [
            study_figures.draw_trade_offs(study, outcomes, best),
            study_figures.draw_parallel(study, outcomes, best),
        ]
    if shares:
        drawn.append(study_figures.draw_importance(shares))
    return render_page(
        "study.html",
        drawn,
        title=study.name,
        facts=_facts(study, outcomes, best),
        limits=[f"{name} {text}" for name, text in study.file.constraints.items()],
        fewest=MIN_TRIALS,
        rows=to_script_json(_compact(rows)),
        study_js=resources.files("raptor.tools.reporting").joinpath("study.js").read_text("utf-8"),
    )


def _facts(study: Study, outcomes: Sequence[TrialOutcome], best: Sequence[TrialOutcome]) -> list[tuple[str, str]]:
    settings = study.file.study
    states = {state: sum(o.state == state for o in outcomes) for state in dict.fromkeys(o.state for o in outcomes)}
    return [
        ("models", ", ".join(m.name for m in study.models)),
        ("space", "; ".join(f"{name}: {orjson.dumps(value).decode()}" for name, value in study.file.space.items())),
        ("objectives", ", ".join(f"{name} ({way})" for name, way in study.objectives.items())),
        ("limits", ", ".join(f"{name} {text}" for name, text in study.file.constraints.items()) or "none"),
        ("sampler", f"{settings.sampler}, seed {settings.seed}, batches of {settings.batch}"),
        ("trials", ", ".join(f"{count} {state}" for state, count in states.items()) or "none yet"),
        ("front", f"{len(best)} points"),
    ]


def _compact(rows: Sequence[FlatRow]) -> dict[str, Any]:
    """Returns the rows as columns for the page; repeated texts are stored once, as indices into a list."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [(_commands if name == "commands" else _column)([row.get(name) for row in rows]) for name in names]
    return {"names": names, "columns": columns}


def _commands(values: Sequence[Any]) -> dict[str, Any]:
    """Encodes command lines: each is split before its options, and the pieces, which repeat, become indices."""
    lines = [text.split(_BETWEEN) for text in values]
    pieces = {piece: k for k, piece in enumerate(dict.fromkeys(piece for line in lines for piece in line))}
    return {"pieces": list(pieces), "between": _BETWEEN, "lines": [[pieces[p] for p in line] for line in lines]}


def _column(values: list[Any]) -> dict[str, Any]:
    if all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in values):
        return {"numbers": [v if v is None or isinstance(v, int) else float(f"{v:.6g}") for v in values]}
    texts = {text: k for k, text in enumerate(dict.fromkeys(_text(v) for v in values))}
    return {"texts": list(texts), "index": [texts[_text(v)] for v in values]}


def _text(value: Any) -> str:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
