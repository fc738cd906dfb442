"""Figures of a decoder's tokens, in `raptor simulate` and in the report."""

import json
from pathlib import Path

import pytest

import raptor
from raptor.output import files
from raptor.tools.cli.app import main
from raptor.tools.reporting.key_figures import list_key_figures
from raptor.tools.reporting.program_facts import gather_facts
from tests import decoder_models as decoders
from validator.simulate import builtin

CAPACITIES = 48, 64


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, proto = tmp_path_factory.mktemp("tokens"), decoders.plain_decoder(positions=64)
    return [
        raptor.compile(proto, states="auto", capacity=capacity, cores=64, resident_constants=True).save(
            folder / str(capacity)
        )
        for capacity in CAPACITIES
    ]


def test_rates_follow_from_step_and_interval(outs: list[Path]) -> None:
    report = builtin.simulate(outs[0], outs[0] / files.ARCH, mode="throughput")
    found = report.tokens
    assert found is not None
    assert report.latency_ns is not None
    assert report.interval_ns is not None
    assert found.session_per_s == pytest.approx(1e9 / report.latency_ns)
    assert found.stream_per_s == pytest.approx(1e9 / report.interval_ns)
    assert found.prompt == CAPACITIES[0] - 1
    assert found.first_ns == pytest.approx(46 * report.interval_ns + report.latency_ns)
    assert found.energy_pj == report.energy_pj
    assert report.beyond_pimsim is not None
    more = report.beyond_pimsim.crossbars_in_use.energy_pj
    assert found.with_uncounted_pj == pytest.approx(found.energy_pj + more)


def test_caches_are_counted_and_timed(outs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Two layers keep keys and values of two heads of 8 channels, a byte each."""
    report = builtin.simulate(outs[0], outs[0] / files.ARCH)
    found = report.tokens
    assert found is not None
    assert found.cache_bytes == 2 * 2 * 2 * 8 * CAPACITIES[0]
    assert found.cache_share is not None
    assert found.product_share is not None
    assert min(found.cache_share, found.product_share) > 0.1
    assert found.cache_share + found.product_share < 1
    with pytest.raises(SystemExit):
        main(["simulate", str(outs[0])])
    told = capsys.readouterr().out
    assert f"{found.cache_bytes:,} bytes of caches for each session" in told
    parts = f"{found.cache_share:.0%} of the time with caches, {found.product_share:.0%} in layers with crossbars"
    assert parts in told


def test_a_further_token_takes_no_longer_than_told(outs: list[Path]) -> None:
    reports = [builtin.simulate(out, out / files.ARCH) for out in outs]
    times = [report.latency_ns for report in reports if report.latency_ns is not None]
    figures = [report.tokens for report in reports if report.tokens is not None]
    assert len(times) == len(figures) == 2
    for found in figures:
        assert found.growth_ns is not None
        assert (times[1] - times[0]) / (CAPACITIES[1] - CAPACITIES[0]) <= found.growth_ns


def test_the_report_has_the_figures_of_the_simulation(outs: list[Path]) -> None:
    simulated = builtin.simulate(outs[1], outs[1] / files.ARCH, mode="throughput").tokens
    shown = {figure.key: figure.value for figure in list_key_figures(gather_facts(outs[1]))}
    assert simulated is not None
    wanted = {
        "tokens_per_s": simulated.session_per_s,
        "tokens_per_s_of_many_sessions": simulated.stream_per_s,
        "first_token_ns": simulated.first_ns,
        "energy_of_a_token_pj": simulated.energy_pj,
        "energy_of_a_token_with_all_pj": simulated.with_uncounted_pj,
        "caches_of_a_session_bytes": simulated.cache_bytes,
        "time_with_caches": simulated.cache_share,
        "time_in_products": simulated.product_share,
        "further_token_ns": simulated.growth_ns,
    }
    assert {key: shown[key] for key in wanted} == pytest.approx(wanted)


def test_what_a_program_does_not_say_is_not_known(outs: list[Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(outs[0], tmp_path / "out")
    path = tmp_path / "out" / files.DECODER
    path.write_text(json.dumps({**json.loads(path.read_text()), "cache_nodes": []}))
    found = builtin.simulate(tmp_path / "out", outs[0] / files.ARCH).tokens
    assert found is not None
    assert (found.cache_share, found.product_share, found.growth_ns) == (None, None, None)
    path.unlink()
    assert builtin.simulate(tmp_path / "out", outs[0] / files.ARCH).tokens is None
    assert not any("token" in figure.name for figure in list_key_figures(gather_facts(tmp_path / "out")))
