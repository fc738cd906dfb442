"""Figures of every model of the zoo: a change is seen, and explained by the commit that makes it."""

import pytest

import models
from tests.models import zoo_table
from tests.models.zoo_table import MAPPINGS, TABLE, differences, figures, row

OFTEN = (
    *("mlp", "lenet5", "resnet18", "shufflenet_v2"),
    *("mlp3", "wavenet_cell", "lstm", "vit_tiny", "bert_tiny", "ds_cnn", "resnet8", "fc_autoencoder"),
)
"""A model of each kind, those that take a second; the others are slow tests."""


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=() if m in OFTEN else pytest.mark.slow) for m in models.MODELS]
)
def test_figures_are_those_of_the_table(model: str, mapping: str):
    name = row(model, mapping)
    changed = list(differences(zoo_table.read().get(name, {}), figures(model, mapping)))
    if changed:
        why = f"{TABLE.name}: {name} changed; if that is right: make zoo-table, and the commit says why each did"
        pytest.fail("\n  ".join([why, *changed]), pytrace=False)


def test_the_table_has_the_whole_zoo_and_nothing_else():
    assert list(zoo_table.read()) == [row(model, mapping) for model in models.MODELS for mapping in MAPPINGS]
    assert set(OFTEN) <= set(models.MODELS)


def test_a_change_is_told_with_its_size():
    was = {"instructions.lmv": 200, "latency_ns": 1000.5, "stream_bytes": 7}
    now = {"instructions.vrelu": 3, "latency_ns": 500.25, "stream_bytes": 7}
    assert list(differences(was, now)) == [
        "instructions.lmv: 200 -> 0, -200 (-100.00%)",
        "instructions.vrelu: 0 -> 3, +3",
        "latency_ns: 1,000.5 -> 500.25, -500.25 (-50.00%)",
    ]
