"""Key figures of a decoder's tokens."""

from collections.abc import Iterator

from raptor.tools.reporting import number_texts
from raptor.tools.reporting.key_figure import KeyFigure
from validator.simulate.analysis.token_figures import TokenFigures
from validator.simulate.simulation_report import energy_text, number_text, time_text


def list_token_figures(found: TokenFigures) -> Iterator[KeyFigure]:
    """Yields rates, the time to the first token, energies, the caches and what they cost. Unknown values are None."""
    of_one, of_many = found.session_per_s, found.stream_per_s
    note = f"one session, a step each; a cache of {found.capacity:,} tokens"
    yield KeyFigure("tokens/s", of_one, number_text(of_one, 4), note)
    shown = "not known" if of_many is None else number_text(of_many, 4)
    yield KeyFigure("tokens/s of many sessions", of_many, shown, "a step each interval, as in a prompt")
    yield _time("first token", found.first_ns, f"after a prompt of {found.prompt:,} tokens")
    yield _energy("energy of a token", found.energy_pj, "when steps are streamed, if that is known")
    note = "with static power that the simulator does not count"
    yield _energy("energy of a token with all", found.with_uncounted_pj, note)
    size = found.cache_bytes
    shown = "not known" if size is None else number_texts.format_size(size)
    yield KeyFigure("caches of a session", size, shown, "states that grow, in local memories", "bytes")
    for name, share, note in (
        ("time with caches", found.cache_share, "share of the critical path of a step"),
        ("time in products", found.product_share, "share of the critical path, of layers with crossbars"),
    ):
        yield KeyFigure(name, share, "not known" if share is None else number_texts.format_share(share), note)
    yield _time("further token", found.growth_ns, "of capacity, at most: time with caches for each token")


def _time(name: str, value: float | None, note: str) -> KeyFigure:
    return KeyFigure(name, value, "not known" if value is None else time_text(value), note, "ns")


def _energy(name: str, value: float | None, note: str) -> KeyFigure:
    return KeyFigure(name, value, "not known" if value is None else energy_text(value), note, "pJ")
