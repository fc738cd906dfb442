"""Running studies: the same trials with any number of workers, and wherever a study was stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sql

import raptor
from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.process import dask_cluster
from raptor.tools.explore.evaluation import worker_pool
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord, evaluate_job
from raptor.tools.explore.evaluation.trial_outcomes import StudyTrial, combine_records
from raptor.tools.explore.point_sampling import PointProposer
from raptor.tools.explore.results import result_tables
from raptor.tools.explore.results.pareto_front import pareto_front
from raptor.tools.explore.study.metrics import parse_limit
from raptor.tools.explore.study.search_space import ParameterValue
from raptor.tools.explore.study.study_file import Study, read_study
from raptor.tools.explore.study_database import RESULTS_TABLE, StudyDatabase
from raptor.tools.explore.study_driver import StudyProgress, override_study, read_outcomes, run_study
from tests.tools.explore.small import model, small, write

LIMIT = '[constraints]\nlatency_ns = "<= 6.5 us"\n'
LIMITS = worker_pool.JobLimits(60, 4000)


def table(study: Study) -> bytes:
    return file_access.model_to_json(result_tables.make_study_report(study, read_outcomes(study)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = small(tmp_path_factory.mktemp("whole"), models=2, rest=LIMIT)
    run_study(study)
    return study


def test_trials(whole: Study):
    found = read_outcomes(whole)
    assert [o.trial.number for o in found] == list(range(16))
    assert {o.state for o in found} == {"ok", "infeasible"}
    refused = next(o for o in found if o.state == "infeasible")
    assert "m0.onnx: " in refused.reason
    assert max(r.needed for r in refused.records) > max(r.available for r in refused.records) > 0
    one = next(o for o in found if o.is_feasible)
    assert one.figures["latency_ns"] == sum(r.figures["latency_ns"] for r in one.records)
    assert one.figures["xbars_used"] == max(r.figures["xbars_used"] for r in one.records)
    assert any(o.has_figures and not o.is_feasible for o in found)
    best = pareto_front(whole, found)
    assert best
    assert all(o.is_feasible for o in best)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("sampler", ["nsga2", pytest.param("tpe", marks=pytest.mark.slow)])
def test_one_worker_and_a_stop_make_no_difference(sampler: str, tmp_path: Path):
    settings = f'trials = 16\nbatch = 4\nseed = 3\nsampler = "{sampler}"'
    expected = small(tmp_path / "a", settings)
    run_study(expected)
    study = small(tmp_path / "b", settings)

    def stop(progress: StudyProgress) -> None:
        if progress.evaluated == 5 or (len(progress.outcomes) == 12 and progress.earlier_trials < 12):
            raise KeyboardInterrupt

    stopped = 0
    while True:
        try:
            run_study(override_study(study, 1, None), stop)
            break
        except KeyboardInterrupt:
            stopped += 1
    assert stopped > 1
    assert table(study) == table(expected)


@pytest.mark.usefixtures("here")
def test_more_trials_later(whole: Study, tmp_path: Path):
    study = small(tmp_path, models=2, rest=LIMIT)
    run_study(override_study(study, None, 8))
    assert len(read_outcomes(study)) == 8
    run_study(study)
    assert table(study) == table(whole)


@pytest.mark.usefixtures("here")
def test_results_are_used_again(whole: Study, tmp_path: Path):
    other = small(tmp_path, f'trials = 8\nbatch = 8\nseed = 4\nstorage = "{whole.storage}"', models=2)
    seen: list[StudyProgress] = []
    with pytest.raises(UserError, match="was begun with other constraints, seed"):
        run_study(other)
    renamed = other.file.study.model_copy(update={"name": "second"})
    run_study(replace(other, file=other.file.model_copy(update={"study": renamed})), seen.append)
    assert seen[-1].reused_results > 0
    assert seen[-1].reused_results + seen[-1].evaluated == 16


@pytest.mark.usefixtures("here")
def test_a_grid_ends_by_itself(tmp_path: Path):
    study = small(tmp_path, 'trials = 99\nbatch = 3\nsampler = "grid"', "\ncores = [2, 4]\ncell_bits = [2, 4, 8]\n")
    assert run_study(study) == read_outcomes(study)
    found = read_outcomes(study)
    assert [tuple(o.trial.point.values()) for o in found] == [(c, b) for c in (2, 4) for b in (2, 4, 8)]


@pytest.mark.usefixtures("here")
def test_a_fixed_mapping(tmp_path: Path):
    study = small(
        tmp_path, 'trials = 4\nbatch = 4\nsampler = "grid"\nmapping = "fixed"', "\nfields.rob_size = [1, 4]\n"
    )
    slow, fast = run_study(study)
    assert slow.figures["latency_ns"] > fast.figures["latency_ns"]
    assert slow.figures["instructions"] == fast.figures["instructions"]


def test_two_drivers(whole: Study):
    store = StudyDatabase(whole.storage)
    with store.lock_study(whole.name), pytest.raises(UserError, match="is being run by another raptor"):
        run_study(whole)
    store.close()
    run_study(whole)


def test_steady_figures(tmp_path: Path):
    job = EvaluationJob(str(model(tmp_path / "m.onnx")), {"cores": 4, "xbar": 16, "xbars_per_core": 8}, is_steady=True)
    found = evaluate_job(job)
    assert found.state == "ok"
    assert 0 < found.figures["interval_ns"] <= found.figures["latency_ns"]
    assert found.figures["steady_energy_pj"] > 0


def test_rounds_and_chips(tmp_path: Path):
    """A model that is too large is written in rounds, which wears cells out, or has several chips."""
    path = str(model(tmp_path / "m.onnx"))
    chip = {"xbar": 16, "xbars_per_core": 6, "cores": 1}
    assert evaluate_job(EvaluationJob(path, chip, is_steady=False)).state == "infeasible"
    rounds = evaluate_job(
        EvaluationJob(path, chip | {"rounds": True, "batch": 8, "device": "pcm-occ"}, is_steady=True)
    ).figures
    alone = raptor.compile(path, **chip, rounds=True, batch=8, device="pcm-occ").simulate()
    assert (rounds["latency_ns"], rounds["writes"]) == (alone.latency_ns, alone.reloading.worst_per_sample)
    assert rounds["wear_per_year"] == 1 / alone.reloading.years > 0
    assert rounds["interval_ns"] == alone.reloading.sample_ns
    more = evaluate_job(EvaluationJob(path, chip | {"rounds": True, "batch": 16}, is_steady=False)).figures
    assert more["writes"] == rounds["writes"] / 2
    assert "wear_per_year" not in more, "the default device does not say how often a cell can be written"
    chips = evaluate_job(
        EvaluationJob(path, chip | {"cores": 2, "chips": 2, "link": "package-ucie"}, is_steady=False)
    ).figures
    dear = evaluate_job(
        EvaluationJob(path, chip | {"cores": 2, "chips": 2, "link": "board-ht"}, is_steady=False)
    ).figures
    assert chips["xbars"] == 24
    assert chips["writes"] == chips["wear_per_year"] == 0
    assert dear["energy_pj"] > chips["energy_pj"]


def test_a_long_study_goes_on(tmp_path: Path):
    """Parents of the generations are found one after another: Optuna's own recursion ends at 500 of them."""
    study = small(tmp_path, "trials = 4000\nbatch = 2")
    point: dict[str, ParameterValue] = {"xbar": 16, "cores": 1, "cell_bits": 2, "mapping": "rows"}
    job, record = (
        EvaluationJob("m.onnx", {}, is_steady=False),
        EvaluationRecord("ok", dict.fromkeys(study.objectives, 1.0)),
    )
    done = [
        combine_records(study, StudyTrial(k, point, ["0"], {"generation": k // 2}), [job], [record])
        for k in range(2400)
    ]
    (first, second) = PointProposer(study, done).propose(2)
    assert (first.number, second.number) == (2400, 2401)
    assert first.notes == {"generation": 1200}


def test_a_machine_without_times_cannot_be_studied(tmp_path: Path):
    chip = {"cores": 4, "xbar": 16, "xbars_per_core": 8, "backend": "c"}
    found = evaluate_job(EvaluationJob(str(model(tmp_path / "m.onnx")), chip, is_steady=False))
    assert (found.state, found.reason) == ("infeasible", "backend='c': a study needs times, and it has none")


def test_what_cannot_be_evaluated(tmp_path: Path):
    path = str(model(tmp_path / "m.onnx"))
    small_chip = evaluate_job(EvaluationJob(path, {"cores": 1, "xbar": 16, "xbars_per_core": 1}, is_steady=False))
    assert (small_chip.state, small_chip.resource != "") == ("infeasible", True)
    assert small_chip.needed > small_chip.available
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    assert evaluate_job(EvaluationJob(str(tmp_path / "bad.onnx"), {}, is_steady=False)).state == "infeasible"
    assert evaluate_job(EvaluationJob(path, {"nonsense": 1}, is_steady=False)).state == "error"


WORKER = """
import os, sys, time, json
if not os.path.exists(sys.argv[1] + " at the start"):
    open(sys.argv[1] + " at the start", "w").close()
    os.kill(os.getpid(), 9)
time.sleep(1.5)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["model"] == "dies" or (job["model"] == "dies once" and not os.path.exists(sys.argv[1])):
        open(sys.argv[1], "w").close()
        os.kill(os.getpid(), 9)
    if job["model"] == "slow":
        time.sleep(60)
    print(json.dumps({"state": "ok", "figures": {"latency_ns": len(job["model"])}}), flush=True)
"""


def test_workers_that_die_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No job is blamed if a process dies before it is ready, or takes longer for that than an evaluation may."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(worker_pool, "WORKER_COMMAND", (str(script), str(tmp_path / "died")))
    names = ["good", "dies", "slow", "dies once", "better", "best"]
    found: dict[int, EvaluationRecord] = {}
    with worker_pool.open_local_pool(2) as submit:
        jobs = [EvaluationJob(name, {}, is_steady=False) for name in names]
        worker_pool.evaluate_all(submit, jobs, worker_pool.JobLimits(1.0, 4000), found.__setitem__)
    assert [found[i].state for i in range(6)] == ["ok", "crashed", "timeout", "ok", "ok", "ok"]
    assert found[1].reason == "the process was killed by signal 9, 3 times"
    assert found[2].reason == "took more than 1 s"
    assert [found[i].figures["latency_ns"] for i in (0, 3, 4, 5)] == [4, 9, 6, 4]


def test_a_limit_of_memory():
    code = (
        "from raptor.tools.explore.evaluation.worker_process import limit_memory; limit_memory(2**29); bytearray(2**30)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip().endswith("MemoryError")


def test_no_process_is_left(tmp_path: Path):
    job = EvaluationJob(str(model(tmp_path / "m.onnx")), {"cores": 4, "xbar": 16}, is_steady=False)
    before = children(os.getpid())
    with worker_pool.open_local_pool(1) as submit:
        assert submit(job, LIMITS).result().state == "ok"
        (pid,) = children(os.getpid()) - before
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def children(pid: int) -> set[int]:
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "explore.evaluation.worker"], stdout=subprocess.PIPE, check=False
    )
    return set(map(int, found.stdout.split()))


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "raptor", "explore", *map(str, args)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_kills(victim: str, tmp_path: Path):
    """Kills a driver, or a worker, at twenty random moments.

    A worker is killed only after results have come since, as a trial that is killed three times is given up.
    """
    settings = "trials = 64\nbatch = 8\nseed = 3"
    expected = small(tmp_path / "a", settings)
    run_study(expected)
    path = write(tmp_path / "b", settings)
    rng = np.random.default_rng(0)
    kills, last = 0, 0
    while True:
        process = subprocess.Popen(command("run", path, "-q"))
        try:
            while process.poll() is None:
                time.sleep(rng.uniform(0.05, 0.4))
                known = _results(small(tmp_path / "b", settings))
                if kills < 20 and process.poll() is None and (victim == "driver" or known > last + 1):
                    kills, last = kills + _kill(process.pid, victim), known
        finally:
            process.kill()
            status = process.wait()
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert table(small(tmp_path / "b", settings)) == table(expected)
    assert kills >= 3


def _results(study: Study) -> int:
    """Returns the number of results in the database of a study."""
    store = StudyDatabase(study.storage)
    try:
        with store.engine.connect() as link:
            return len(link.execute(sql.select(RESULTS_TABLE.c.digest)).all())
    finally:
        store.close()


def _kill(pid: int, victim: str) -> int:
    if victim == "driver":
        os.kill(pid, signal.SIGKILL)
        return 1
    chosen = sorted(children(pid))[:1]
    for child in chosen:
        os.kill(child, signal.SIGKILL)
    return len(chosen)


@pytest.mark.slow
def test_a_cluster(whole: Study, tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    study = small(tmp_path, models=2, rest=LIMIT)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        settings = study.file.run.model_copy(update={"scheduler": cluster.scheduler_address})
        run_study(replace(study, file=study.file.model_copy(update={"run": settings})))
    assert table(study) == table(whole)


@pytest.mark.slow
def test_four_workers(whole: Study, tmp_path: Path):
    study = small(tmp_path, models=2, rest=LIMIT)
    run_study(override_study(study, 4, None))
    assert table(study) == table(whole)


@pytest.mark.slow
def test_a_scheduler_and_workers_in_processes_of_their_own(whole: Study, tmp_path: Path):
    """They are started as a site does it. One worker is killed in the middle; what it had is evaluated by the other."""
    pytest.importorskip("distributed")
    study = small(tmp_path, models=2, rest=LIMIT)
    with ExitStack() as stack:
        file = tmp_path / "scheduler.json"

        def start(*words: str) -> subprocess.Popen[bytes]:
            dask = [sys.executable, "-m", "dask", *words]
            process = stack.enter_context(subprocess.Popen(dask, cwd=tmp_path, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            return process

        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        workers_of = ("--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--no-nanny")
        victim, _ = (start("worker", *workers_of, "--local-directory", str(tmp_path / name)) for name in "ab")
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.1)
        settings = study.file.run.model_copy(update={"scheduler": json.loads(file.read_text())["address"]})

        def kill_one(progress: StudyProgress) -> None:
            if progress.evaluated == 5:
                victim.kill()

        run_study(replace(study, file=study.file.model_copy(update={"run": settings})), kill_one)
    assert victim.returncode == -signal.SIGKILL
    assert table(study) == table(whole)


def test_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = small(tmp_path, rest='[run]\nscheduler = "tcp://127.0.0.1:9"\n')
    monkeypatch.setattr(dask_cluster, "CONNECT_TIMEOUT_S", 1)
    with pytest.raises(UserError, match="no scheduler of Dask answers"):
        run_study(study)


def test_optuna_reads_the_database(whole: Study):
    import optuna

    copy = optuna.load_study(study_name="small", storage=whole.storage)
    found = read_outcomes(whole)
    assert [t.params for t in copy.trials] == [dict(o.trial.point) for o in found]
    assert {t.number for t in copy.best_trials} <= {o.trial.number for o in found if o.is_feasible}
    assert copy.metric_names == list(whole.objectives)


def test_equal_results_on_threads(tmp_path: Path):
    """Evaluations do not disturb each other."""
    path = str(model(tmp_path / "m.onnx"))
    jobs = [EvaluationJob(path, {"cores": 2 + k % 3, "xbar": 16}, is_steady=False) for k in range(6)]
    with ThreadPoolExecutor(2) as pool:
        found = [r.figures for r in pool.map(evaluate_job, jobs)]
    assert found[:3] == found[3:]
    assert len({json.dumps(f) for f in found}) > 1


@pytest.mark.usefixtures("here")
def test_accuracy(tmp_path: Path):
    """Fewer bits of the converters lose answers, and the command measures the same."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((12, 1, 40)).astype(np.float32), y=rng.integers(0, 40, 12))
    space = "\ncrossbar.adc_bits = [2, 12]\nxbar = 64\n"
    settings = 'trials = 2\nbatch = 2\nsampler = "grid"'
    rest = '[accuracy]\ndata = ["data.npz"]\ncrossbar = "sliced"\n'
    path = write(tmp_path, settings, space, rest)
    path.write_text(path.read_text().replace('energy_pj = "min"', 'agreement = "max"'))
    assert run_study(read_study(path))[0].reason.startswith("m0.onnx: a program of float32 numbers has no bits")
    raptor.quantize(tmp_path / "m0.onnx").save(tmp_path / "m0.onnx", force=True)
    (tmp_path / "small.db").unlink()
    study = read_study(path)
    coarse, fine = run_study(study)
    assert coarse.figures["agreement"] < fine.figures["agreement"]
    assert (coarse.figures["adc_bits"], fine.figures["adc_bits"]) == (2, 12)
    assert coarse.figures["latency_ns"] == fine.figures["latency_ns"]
    point = result_tables.make_study_report(study, [fine]).results[0]
    assert point.commands[0].endswith("--crossbar sliced --with adc_bits=12")
    path.write_text(path.read_text().replace("[accuracy]", "[accuracy]\nsamples = 6"))
    with pytest.raises(UserError, match="was begun with other accuracy"):
        run_study(read_study(path))


@pytest.mark.usefixtures("here")
def test_a_file_that_changed_is_evaluated_again(tmp_path: Path):
    write(tmp_path)
    arch = json.loads((Path(raptor.__file__).parent / "target" / "presets" / "bench.json").read_text())
    figures: list[float] = []
    for name, size in (("a", 1), ("b", 4)):
        arch["chip_config"]["core_config"]["rob_size"] = size
        (tmp_path / "chip.json").write_text(json.dumps(arch))
        settings = f'trials = 1\nbatch = 1\nsampler = "grid"\nstorage = "sqlite:///shared.db"\n#{name}'
        path = write(tmp_path, settings, '\narch = "chip.json"\n')
        path.write_text(path.read_text().replace('name = "small"', f'name = "{name}"'))
        figures.append(run_study(read_study(path))[0].figures["latency_ns"])
    assert figures[0] > figures[1]


def test_area_and_peak_power_are_those_of_the_program(tmp_path: Path):
    """The figures of a study are those of `simulate`; a chip without areas has none."""
    path = str(model(tmp_path / "m.onnx"))
    found = evaluate_job(EvaluationJob(path, {"arch": "isaac", "cores": 4}, is_steady=False, needs_power=True)).figures
    report = raptor.compile(path, arch="isaac", cores=4).simulate()
    assert found["area_mm2"] == report.area_mm2 == pytest.approx(4 * 0.37229 + 22.88)
    assert found["power_peak_w"] == pytest.approx(report.power_peak_w, rel=1e-12)
    other = evaluate_job(EvaluationJob(path, {"arch": "isaac", "cores": 4, "xbar": 64}, is_steady=False)).figures
    assert "area_mm2" not in other
    assert "power_peak_w" not in other


@pytest.mark.parametrize(
    ("metric", "limit", "bound"), [("area_mm2", "<= 0.5 cm2", 50.0), ("power_peak_w", "<= 500 mW", 0.5)]
)
def test_limits_of_area_and_power(metric: str, limit: str, bound: float):
    assert parse_limit(metric, limit).bound == pytest.approx(bound)
