"""A sweep over crossbar sizes and numbers of cores, as a table of comma-separated values.

python examples/05_sweep.py > sweep.csv
"""

import csv
import sys
import tempfile
from itertools import product
from pathlib import Path

import models
import raptor
from validator.simulate.builtin import simulate

SIZES = (32, 64, 128)
CORES = (4, 8, 16, 32)

model = models.build("lenet5")
table = csv.writer(sys.stdout, lineterminator="\n")
table.writerow(["xbar", "cores", "xbars_used", "latency_us", "energy_uj", "why_not"])
with tempfile.TemporaryDirectory() as scratch:
    for size, cores in product(SIZES, CORES):
        try:
            program = raptor.compile(model, xbar=size, cores=cores, xbars_per_core=16)
        except raptor.CapacityError as error:
            table.writerow([size, cores, "", "", "", f"{error.resource}: {error.needed} needed"])
            continue
        out = program.save(Path(scratch) / "out", stream_format="pim", weight_format="npz", force=True)
        found = simulate(out, out / "arch.json")
        latency, energy = (found.latency_ns or 0) / 1e3, (found.energy_pj or 0) / 1e6
        table.writerow([size, cores, program.report.xbars_used, f"{latency:.1f}", f"{energy:.2f}", ""])
