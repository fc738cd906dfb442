"""The sentence about a program with integers."""

import pytest

from validator.judge.validation_report import IntegerFigures, describe_integers


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (
            IntegerFigures(10, 0, 20, 0, 0),
            "bit for bit equal to the definition (10 integers); differs from onnxruntime in 0 of 20 values",
        ),
        (
            IntegerFigures(10, 0, 20, 3, 3),
            "bit for bit equal to the definition (10 integers); "
            "differs from onnxruntime in 3 of 20 values, all explained",
        ),
        (
            IntegerFigures(10, 2, 20, 3, 1),
            "differs from the definition in 2 of 10 integers; "
            "differs from onnxruntime in 3 of 20 values, 2 not explained",
        ),
        (
            IntegerFigures(10, 0, 20, 0, 0, floats=7, excused=1),
            "bit for bit equal to the definition (9 integers), 1 integers rounded from floats and 7 floats within the "
            "tolerance; differs from onnxruntime in 0 of 20 values",
        ),
        (
            IntegerFigures(10, 0, 20, 0, 0, floats=7, floats_differing=2),
            "differs from onnxruntime in 2 of 7 floats by more than the tolerance; "
            "differs from onnxruntime in 0 of 20 values",
        ),
    ],
)
def test_words(figures, words):
    assert describe_integers(figures) == words
