"""`raptor yield`: shares of chips, equal to those of repaired programs, and what is refused."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pydantic import TypeAdapter

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import read_stored_target
from raptor.target.chip_file import make_chip
from raptor.tools.cli.app import build_commands
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.measure_yield import (
    YieldPoint,
    YieldReport,
    YieldSource,
    YieldTask,
    _measure_on_worker,  # pyright: ignore[reportPrivateUsage]
    measure_yield,
)
from raptor.tools.repair.repair_output import repair_output
from raptor.tools.repair.yield_command import show_yield
from raptor.tools.repair.yield_plot import draw_yield
from validator.accuracy.measure import measure_accuracy
from validator.accuracy.statistics import wilson_interval

COMMAND = build_commands()
WITH = ("--with", "encoding=differential_analog")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("yield")
    training, test = load_images()
    np.savez(made / "data.npz", image=training.pixels[:20])
    np.savez(made / "test.npz", x=test.pixels[:30], y=test.digits[:30])
    np.savez(made / "unlabelled.npz", x=test.pixels[:30])
    raptor.quantize(MODEL, data=made / "data.npz", per_channel=True).save(made / "digits.onnx")
    raptor.compile(made / "digits.onnx", xbar=128, cores=64, cell_bits=4, xbars_per_core=6).save(made / "out")
    return made


def test_shares_of_good_chips(folder: Path):
    """The accuracy of each chip is that of the program repaired for it."""
    words = ("--data", str(folder / "test.npz"), "--rates", "0.04", "--chips", "2", "--candidates", "6", "--seed", "3")
    done = invoke("yield", str(folder / "out"), *words, "--methods", "written,crossbars", *WITH, "--json", "-")
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    written, best = report["points"]
    top1: list[float] = []
    size = make_size(read_stored_target(folder / "out", files.ARCH), 2)
    for seed in (3, 4):
        chip = make_chip(draw_chip(size, DefectRates(stuck=0.04), seed))
        out = repair_output(folder / "out", chip, None, {"encoding": "differential_analog"}).save(folder / f"die{seed}")
        top1.append(measure_accuracy(out, folder / "test.npz").top1 or 0.0)
    assert (best["lowest"], best["mean"]) == (min(top1), pytest.approx(np.mean(top1)))
    good = sum(share >= 0.97 for share in top1)
    interval = wilson_interval(good, 2)
    assert (best["good"], best["share"], best["interval"]) == (
        good,
        good / 2,
        {"low": interval.low, "high": interval.high},
    )
    assert written["mean"] < best["mean"] - 0.2


def test_the_table(folder: Path, tmp_path: Path):
    words = ("--data", str(folder / "test.npz"), "--samples", "5", "--chips", "3", "--rates", "0,0.01", *WITH)
    done = invoke("yield", str(folder / "out"), *words, "--candidates", "6", "--csv", str(tmp_path / "y.csv"), "-q")
    assert done.exit_code == 0, done.exception
    assert len(done.output.splitlines()) == 6
    assert " 0.00%  nearest        3             100.0%" in done.output
    lines = (tmp_path / "y.csv").read_text().splitlines()
    assert lines[0] == "stuck,method,chips,good,share,low,high,mean,lowest"
    assert [line.split(",")[:2] for line in lines[1:3]] == [["0", "nearest"], ["0", "sums"]]


@pytest.mark.parametrize(
    ("exact", "words"), [(0.96, "96.00% without defects, below --least"), (0.97, "97.00% without")]
)
def test_a_program_that_is_not_good_enough_itself(exact: float, words: str):
    point = YieldPoint(0.01, "sums", 1, 0, 0.0, wilson_interval(0, 1), 0.5, 0.5)
    report = YieldReport("digits", 0.97, exact, 5, "offset", 4, 0, DefectRates(), 0, 8, (point,))
    first, *_ = show_yield(report, quiet=False)
    assert f"{exact:.2%} without defects" in first
    assert ("below --least" in first) == (exact < 0.97)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rates", "a"), "expected numbers from 0 to 1"),
        (("--rates", "0.1,0.1"), "expected different numbers from 0 to 1"),
        (("--rates", "2"), "expected different numbers from 0 to 1"),
        (("--methods", "magic"), "expected different ones of written, nearest"),
        (("--candidates", "7"), "a core has 6 crossbars"),
        (("--candidates", "1"), "crossbars of a core; a repair needs at least as many"),
        (("--data", "unlabelled.npz"), "has no labels"),
        (("--with", "adc_bits=8"), "adc_bits"),
    ],
)
def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str):
    monkeypatch.chdir(folder)
    data = () if "--data" in words else ("--data", "test.npz")
    done = invoke("yield", "out", *data, *(() if "--candidates" in words else ("--candidates", "6")), *words)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)


def test_the_plot_has_the_shares(folder: Path, tmp_path: Path):
    page = tmp_path / "yield.html"
    words = ("--data", str(folder / "test.npz"), "--samples", "5", "--chips", "2", "--rates", "0.05,0.01")
    done = invoke("yield", str(folder / "out"), *words, "--candidates", "6", "--plot", str(page), *WITH, "--json", "-")
    assert done.exit_code == 0, done.output
    report = TypeAdapter(YieldReport).validate_json(done.stdout)
    traces, _ = draw_yield(report)
    assert [trace["name"] for trace in traces] == ["nearest", "sums", "crossbars"]
    assert [trace["x"] for trace in traces] == [[1.0, 5.0]] * 3
    shares = {(p.method, 100 * p.stuck): 100 * p.share for p in report.points}
    assert all(shares[t["name"], x] == y for t in traces for x, y in zip(t["x"], t["y"], strict=True))
    assert b'id="yield"' in page.read_bytes()


@pytest.mark.slow
def test_a_cluster_changes_nothing(folder: Path, tmp_path: Path):
    """A worker measures the chips, and refuses files that are not those of the caller."""
    distributed = pytest.importorskip("distributed")
    words = ("--data", str(folder / "test.npz"), "--samples", "5", "--chips", "3", "--rates", "0.05", *WITH)
    every = ("yield", str(folder / "out"), *words, "--candidates", "6", "--json", "-")
    alone = invoke(*every)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        done = invoke(*every, "--scheduler", cluster.scheduler_address)
        assert done.exit_code == 0, done.exception
        assert done.stdout == alone.stdout
    source = YieldSource(folder / "out", folder / "test.npz", 5, None, {"encoding": "differential_analog"})
    task = YieldTask(
        rates=(0.05,),
        others=DefectRates(),
        methods=("sums",),
        chips=1,
        seed=0,
        least=0.9,
        candidates=6,
        spare_columns=0,
    )
    (found,) = _measure_on_worker(source, task, source.find_digests(), (0.05, 0))
    assert found[0] == "sums"
    shutil.copytree(folder / "out", tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(UserError, match="the files on a worker are not those of the caller"):
        _measure_on_worker(replace(source, out=tmp_path / "out"), task, source.find_digests(), (0.05, 0))


def test_a_scheduler_that_does_not_answer(folder: Path):
    pytest.importorskip("distributed")
    every = ("yield", str(folder / "out"), "--data", str(folder / "test.npz"), "--candidates", "6", *WITH)
    done = invoke(*every, "--scheduler", "tcp:/127.0.0.1")
    assert isinstance(done.exception, UserError)
    assert "--scheduler: tcp:/127.0.0.1: no scheduler of Dask answers" in str(done.exception)
    assert "--workers: not with --scheduler" in str(invoke(*every, "--scheduler", "a", "--workers", "2").exception)


def test_the_number_of_threads_changes_nothing(folder: Path):
    words = ("--data", str(folder / "test.npz"), "--samples", "5", "--chips", "3", "--rates", "0.05", *WITH)
    found = [
        invoke("yield", str(folder / "out"), *words, "--candidates", "6", "--workers", n, "--json", "-").stdout
        for n in ("1", "3")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(("workers", "left_s"), [(1, [20, 10, 0]), (2, [5, 10, 0])])
def test_time_left(folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int, left_s: list[float]):
    """Each chip ends 10 s after the one before; when one of two threads ends, the other has done as much."""
    monkeypatch.setattr("raptor.tools.repair.measure_yield.perf_counter", itertools.count(0, 10).__next__)
    task = YieldTask(
        rates=[0.01],
        others=DefectRates(),
        methods=["nearest"],
        chips=3,
        seed=0,
        least=0.9,
        candidates=6,
        spare_columns=0,
        workers=workers,
    )
    told: list[tuple[int, int, float]] = []

    def tick(done: int, count: int, left_s: float) -> None:
        told.append((done, count, left_s))

    source = YieldSource(folder / "out", folder / "test.npz", 2, None, {"encoding": "differential_analog"})
    measure_yield(source, task, tick)
    assert told == [(k, 3, pytest.approx(left)) for k, left in enumerate(left_s, 1)]


def test_time_is_told_after_the_first_chip(folder: Path):
    words = ("--data", str(folder / "test.npz"), "--samples", "2", "--rates", "0.01", "--candidates", "6", *WITH)
    assert "2 chips: time left " in invoke("yield", str(folder / "out"), *words, "--chips", "2").stderr
    for more in (("--chips", "2", "-q"), ("--chips", "1")):
        assert "time left" not in invoke("yield", str(folder / "out"), *words, *more).stderr
