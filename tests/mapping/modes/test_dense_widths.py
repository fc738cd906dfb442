"""The width of the matrices of a fully connected layer is the best of all widths, whose matrices are all made here."""

from random import Random

import pytest

import models
from raptor.frontend import load
from raptor.graph.layers import find_filters, is_dense
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.dense_unfolding import choose_dense_matrices, dense_latency_ns, unfold_dense
from raptor.mapping.modes.kernel_unfolding import fill_cores
from raptor.options import ChipOptions
from raptor.target.arch import load_chip

LAYERS = [f for name in ("lenet5", "mlp") for f in find_filters(load(models.build(name)).graph).values() if is_dense(f)]


@pytest.mark.parametrize("seed", range(30))
def test_the_width_is_the_best_of_all(seed: int) -> None:
    rng = Random(seed)
    filter_, tile, core = rng.choice(LAYERS), rng.choice([8, 16, 20, 32]), 3
    chip = load_chip(ChipOptions(arch="bench", cores=64, xbar=(16, 16), xbars_per_core=rng.randint(2, 24)))
    free, tiles = rng.randint(0, chip.xbars_per_core), -(-filter_.weights.shape[2] // tile)
    most = max(1, chip.xbars_per_core // -(-tile // chip.weight_columns(filter_.weight_bits)))

    def cost(matrices: tuple[Matrix, ...]) -> tuple[int, float]:
        cores, _ = fill_cores(matrices, core, free, chip)
        return cores[-1], dense_latency_ns(matrices, cores, chip, tile)

    widths = [tuple(unfold_dense(filter_, chip, tile, n)) for n in range(1, min(most, tiles) + 1)]
    assert choose_dense_matrices(filter_, chip, tile, core, free) == min(widths, key=cost)
