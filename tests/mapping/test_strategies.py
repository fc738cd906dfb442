"""Tests for every mapping strategy, by its name in the table: a new one is found by itself."""

import pytest

from raptor.common.options.option_values import STRATEGY
from raptor.mapping.strategies import STRATEGIES
from raptor.options import MappingOptions, collect_options
from tests.fuzz import given, graphs, quantised
from tests.paths import ROOT
from tests.pipeline import check, conv_model


def test_every_strategy_can_be_named():
    assert set(STRATEGY.choices) == set(STRATEGIES), "StrategyName is in raptor/common/options/option_values.py"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_computes_the_model_and_tells_its_name(name: str):
    program = check(conv_model((1, 3, 9, 8), 4, relu=True), xbar=16, cores=40, mapping=name)
    assert program.report.strategy == name


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_described(name: str):
    page = (ROOT / "docs" / "developers" / "mapping.md").read_text().partition("## Strategies")[2].partition("\n## ")[0]
    assert f"- `{name}`" in page
    assert name in collect_options(MappingOptions)["mapping"].help


def test_the_fuzz_campaign_draws_every_strategy():
    assert {drawn.get("mapping", "rows") for drawn in graphs.STRATEGIES} == set(STRATEGIES)
    assert set(quantised.STRATEGIES) == set(given.MAPPINGS) == set(STRATEGIES)
