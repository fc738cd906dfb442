"""The table of importers."""

import pytest

from raptor.frontend.registry import find_importer, importer, importers


def test_every_importer_has_a_summary():
    assert [i.op_type for i in importers() if not i.summary.endswith(".")] == []
    assert {"Conv", "Gemm", "MaxPool", "Softmax"} <= {i.op_type for i in importers()}


@pytest.mark.parametrize(("version", "since"), [(6, 1), (10, 1), (11, 11), (21, 11)])
def test_the_newest_importer_not_above_the_version(version: int, since: int):
    found = find_importer("Clip", version)
    assert found is not None
    assert found.since == since


def test_nothing_before_the_first_version():
    assert find_importer("BatchNormalization", 6) is None
    assert find_importer("Unheard", 17) is None


def test_no_operator_has_two_importers():
    with pytest.raises(ValueError, match="Conv version 1 has two importers"):
        importer("Conv", since=1)(lambda node, ctx: None)
