"""Shows studies on the terminal: progress while one runs, the front, what was verified."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table

from raptor.common.console import Console
from raptor.explore.driver import Progress, Watch
from raptor.explore.front import front, hypervolumes
from raptor.explore.study import Study
from raptor.explore.trials import Outcome
from raptor.explore.verifying import Check

_MOST_ROWS = 20


@contextmanager
def watching(study: Study, *, quiet: bool) -> Generator[Watch]:
    """Shows progress: a live table on a terminal, a line for each batch in a pipe."""
    console = Console(stderr=True)
    begin = time.monotonic()
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4) as live:
            yield lambda progress: live.update(_live(study, progress, time.monotonic() - begin))
    else:
        yield _lines(study, console, begin)


def _lines(study: Study, console: Console, begin: float) -> Watch:
    shown = -1

    def line(progress: Progress) -> None:
        nonlocal shown
        if len(progress.outcomes) != shown:
            shown = len(progress.outcomes)
            console.print(", ".join(f"{k} {v}" for k, v in _facts(study, progress, time.monotonic() - begin)))

    return line


def _live(study: Study, progress: Progress, seconds: float) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    for name, value in _facts(study, progress, seconds):
        table.add_row(name, value)
    return table


def _facts(study: Study, progress: Progress, seconds: float) -> list[tuple[str, str]]:
    """Returns trials, rate, time left, the best of each objective, hypervolume."""
    done, feasible = progress.outcomes, [o for o in progress.outcomes if o.is_feasible]
    rate = progress.evaluated / seconds if seconds else 0.0
    found = [
        ("trials", f"{len(done)} of {progress.count}"),
        ("evaluated", f"{progress.evaluated}, {rate:.2f} a second; {progress.known} answered from the database"),
    ]
    fresh = len(done) - progress.before
    if fresh > 0:
        found.append(("time left", f"{seconds / fresh * (progress.count - len(done)):.0f} s"))
    for name, way in study.objectives.items():
        values = [o.figures[name] for o in feasible]
        found.append((f"best {name}", f"{(min if way == 'min' else max)(values):.6g}" if values else "none yet"))
    if done:
        found.append(("hypervolume", f"{hypervolumes(study, done)[-1]:.4f}"))
    return found


def show_front(study: Study, outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints counts of trials, and the front with its objectives and parameters."""
    best = front(study, outcomes)
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


def _broken(one: Outcome) -> str:
    broken = {name: value for name, value in one.excess.items() if value > 0}
    return ", ".join(f"{name} breaks its limit by {100 * value:.3g} %" for name, value in broken.items())


def show_verified(checks: Sequence[Check], console: Console) -> None:
    """Prints a line for each program that was verified."""
    for check in checks:
        console.print(str(check), soft_wrap=True)
