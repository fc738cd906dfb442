"""Overhead of a study without its evaluations: time per trial, and the page, with many trials in the database.

    python -m benchmarks.speed.study_overhead [--trials 10000] [--sampler nsga2]

Evaluations are replaced by a formula. Prints milliseconds of a trial, and size and time of the page.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raptor.tools.explore import study_driver
from raptor.tools.explore.evaluation import worker_pool
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord
from raptor.tools.explore.results import result_tables
from raptor.tools.explore.results.study_page import render_study_page
from raptor.tools.explore.study.study_file import read_study

STUDY = """
objectives = {{ latency_ns = "min", energy_pj = "min", xbars = "min" }}
[study]
name = "many"
models = ["model"]
sampler = "{sampler}"
trials = {trials}
batch = 16
[space]
xbar = [32, 64, 128, 256]
cores = {{ min = 16, max = 1024 }}
xbars_per_core = {{ min = 8, max = 96, step = 8 }}
cell_bits = [1, 2, 4, 8]
mapping = ["rows", "raptor"]
fields.rob_size = {{ min = 1, max = 16 }}
"""


def evaluate_formula(job: EvaluationJob) -> EvaluationRecord:
    """Returns figures by a formula that resembles the real dependence on the options."""
    o = job.options
    size, cores, bits = float(o["xbar"]), float(o["cores"]), float(o["cell_bits"])
    latency_ns = 1e6 * (1 + 400 * (o["mapping"] == "raptor")) / cores * (1 + 8 / bits) * (1 + 64 / size)
    xbars = cores * o["xbars_per_core"]
    energy_pj = latency_ns * (40 + cores) + 1e6 * bits * size
    return EvaluationRecord(
        "ok", {"latency_ns": latency_ns, "energy_pj": energy_pj, "xbars": xbars, "cores_used": cores}
    )


def evaluate_here(_: Any, jobs: Sequence[EvaluationJob], __: worker_pool.JobLimits, done: Any) -> None:
    """Replaces `workers.evaluate_all`: evaluates the jobs in this process, by `formula`."""
    for index, job in enumerate(jobs):
        done(index, evaluate_formula(job))


def main() -> None:
    """Runs a study of many trials, times its last trials, and makes its page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--sampler", default="nsga2")
    given = parser.parse_args()
    worker_pool.evaluate_all = evaluate_here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").write_bytes(b"")
        path = folder / "study.toml"
        path.write_text(STUDY.format(trials=given.trials, sampler=given.sampler))
        study = read_study(path)
        times: list[float] = []
        study_driver.run_study(
            study, lambda p: times.append(time.perf_counter()) if len(p.outcomes) == p.total_trials - 160 else None
        )
        per_trial_ms = 1000 * (time.perf_counter() - times[0]) / 160
        print(f"{given.sampler}: {per_trial_ms:.1f} ms a trial at {given.trials} trials")
        begin = time.perf_counter()
        outcomes = study_driver.read_outcomes(study)
        rows = result_tables.flatten_report(result_tables.make_study_report(study, outcomes))
        page = render_study_page(study, outcomes, rows)
        print(f"page: {len(page.encode()) / 1e6:.1f} MB in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
