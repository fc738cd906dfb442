"""Shows studies on the terminal: progress, the Pareto front, and results of verification."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table

from raptor.common.terminal.console import LiteralConsole
from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results.front_verification import FrontCheck
from raptor.tools.explore.results.pareto_front import HypervolumeTracker, pareto_front
from raptor.tools.explore.study.study_file import Study
from raptor.tools.explore.study_driver import ProgressCallback, StudyProgress

_MOST_ROWS = 20


@contextmanager
def watch_study(study: Study, *, quiet: bool) -> Generator[ProgressCallback]:
    """Yields a progress callback: it shows a live table on a terminal, and prints a line per batch into a pipe."""
    console = LiteralConsole(stderr=True)
    facts = _Facts(study)
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4) as live:
            yield lambda progress: live.update(_live(facts.list_facts(progress)))
    else:
        yield _lines(facts, console)


def _lines(facts: "_Facts", console: LiteralConsole) -> ProgressCallback:
    shown = -1

    def line(progress: StudyProgress) -> None:
        nonlocal shown
        if len(progress.outcomes) != shown:
            shown = len(progress.outcomes)
            console.print(", ".join(f"{k} {v}" for k, v in facts.list_facts(progress)))

    return line


def _live(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    for name, value in facts:
        table.add_row(name, value)
    return table


class _Facts:
    """Figures of progress of a study. Each trial is read once, because there may be very many."""

    def __init__(self, study: Study) -> None:
        self._begin = time.monotonic()
        self._covered = HypervolumeTracker(study)
        self._best: dict[str, float | None] = dict.fromkeys(study.objectives)
        self._choose = {name: min if way == "min" else max for name, way in study.objectives.items()}
        self._seen = 0

    def list_facts(self, progress: StudyProgress) -> list[tuple[str, str]]:
        """Returns name and text of: trials, rate, remaining time, the best value of each objective, hypervolume."""
        self._follow(progress.outcomes)
        seconds, done = time.monotonic() - self._begin, len(progress.outcomes)
        rate = progress.evaluated / seconds if seconds else 0.0
        found = [
            ("trials", f"{done} of {progress.total_trials}"),
            (
                "evaluated",
                f"{progress.evaluated}, {rate:.2f} a second; {progress.reused_results} answered from the database",
            ),
        ]
        fresh = done - progress.earlier_trials
        if fresh > 0:
            found.append(("time left", f"{seconds / fresh * (progress.total_trials - done):.0f} s"))
        found += [(f"best {n}", "none yet" if value is None else f"{value:.6g}") for n, value in self._best.items()]
        return found + ([("hypervolume", f"{self._covered.relative_volume:.4f}")] if done else [])

    def _follow(self, outcomes: Sequence[TrialOutcome]) -> None:
        self._covered.add_outcomes(outcomes)
        for one in (o for o in outcomes[self._seen :] if o.is_feasible):
            for name, known in self._best.items():
                value = one.figures[name]
                self._best[name] = value if known is None else self._choose[name](known, value)
        self._seen = len(outcomes)


def show_front(study: Study, outcomes: Sequence[TrialOutcome], console: LiteralConsole) -> None:
    """Prints counts of trials by state, and the Pareto front with objectives and parameters."""
    best = pareto_front(study, outcomes)
    states = {state: sum(o.state == state for o in outcomes) for state in sorted({o.state for o in outcomes})}
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    points = "1 point" if len(best) == 1 else f"{len(best)} points"
    console.print(f"{len(outcomes)} trials ({counts or 'none yet'}), {points} on the front")
    if not best:
        for reason in list(dict.fromkeys(o.reason or _broken(o) for o in outcomes))[:5]:
            console.print(reason, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for name in (*study.objectives, *(p.name for p in study.space)):
        table.add_column(name, justify="right")
    for one in best[:_MOST_ROWS]:
        figures = [f"{one.figures[name]:.6g}" for name in study.objectives]
        table.add_row(*figures, *(str(one.trial.point[p.name]) for p in study.space))
    console.print(table)
    if len(best) > _MOST_ROWS:
        console.print(f"and {len(best) - _MOST_ROWS} more: raptor explore show STUDY --csv -")


def _broken(one: TrialOutcome) -> str:
    broken = {name: value for name, value in one.excess.items() if value > 0}
    return ", ".join(f"{name} breaks its limit by {100 * value:.3g} %" for name, value in broken.items())


def show_verified(checks: Sequence[FrontCheck], console: LiteralConsole) -> None:
    """Prints a line for each verified program."""
    for check in checks:
        console.print(str(check), soft_wrap=True)
