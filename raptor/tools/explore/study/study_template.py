"""The commented template of a study file that `raptor explore new` writes."""

from collections.abc import Sequence
from pathlib import Path

from raptor.tools.explore.study.metrics import METRICS

_TEXT = """# A study for `raptor explore run`. docs/how-to/explore.md describes every key.
# Objectives: "min" or "max" of some of these figures:
{figures}
objectives = {{ latency_ns = "min", energy_pj = "min", xbars = "min" }}

[study]
name = "{name}"
models = [{models}]  # paths relative to this file; each point is tried with all of them
sampler = "nsga2"      # grid: every point; random; nsga2, tpe: learn from the trials so far
trials = 64            # best a multiple of batch
batch = 16             # trials that are proposed together; at least 4 for each worker keeps all of them busy
seed = 0               # the same seed gives the same trials, with any number of workers
# storage = "postgresql+psycopg://user@host/database"   # else sqlite:///{name}.db
# mapping = "fixed"    # compile once, and vary fields of the architecture only

[run]
workers = 2            # processes of this computer
# scheduler = "tcp://host:8786"   # or those of a Dask cluster
timeout_s = 600        # of one evaluation
memory_mb = 8000       # of one evaluation

# Options of `raptor compile` that all points share.
[options]
arch = "bench"
xbars_per_core = 64

# What varies: a list of values, or a range. knobs.NAME are numbers of the mapping `rows`, and fields.NAME are fields
# of the architecture file (docs/reference/architecture.md).
[space]
xbar = [[64, 64], [128, 128], [256, 256]]
cores = {{ min = 16, max = 144, step = 16 }}
cell_bits = [1, 2, 4, 8]
mapping = ["rows", "raptor"]
fields.rob_size = [1, 4]

# Labelled data, for the figures top1, top5 and agreement; crossbar.NAME in the space is a setting of the crossbars.
# [accuracy]
# data = ["test.npz"]    # x and y; one file, or one for each model
# crossbar = "noisy"     # ideal, integer, sliced, noisy
# cells = "reram-wan2022"
# samples = 200

# Limits on any of the figures, for each model.
[constraints]
latency_ns = "<= 10 ms"
local_bytes = "<= 64 KiB"
"""


def render_template(models: Sequence[Path]) -> str:
    """Returns the text of a study file for these models."""
    names = ", ".join(f'"{path.as_posix()}"' for path in models)
    figures = "\n".join(f"#   {name}: {metric.meaning}" for name, metric in METRICS.items())
    return _TEXT.format(name=models[0].stem, models=names, figures=figures)
