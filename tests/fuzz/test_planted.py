"""The table of planted defects keeps step with the code; `make fuzz` plants them."""

import ast

import pytest

from tests.fuzz.campaign import BrokenError
from tests.fuzz.defects import DEFECTS, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: f"{d.file}: {d.old[:40]}")
def test_the_text_is_there_and_the_change_is_python(defect: Defect):
    ast.parse(defect.source())


def test_a_text_that_is_gone_is_told():
    with pytest.raises(BrokenError, match="mend this table"):
        Defect("raptor/common/errors.py", "no such text", "").source()


def test_all_defects_differ():
    assert len(set(DEFECTS)) == len(DEFECTS) >= 60
