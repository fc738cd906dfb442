"""Labelled samples for training and validation: a fixed split, equal samples on one side, no sample of a test."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name, spell_option
from raptor.tools.quantise.calibration_data import SampledInput, convert_values
from validator.accuracy.labelled_data import LabelledData, digest_each, read_labelled_data

_SPLIT_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Samples with labels, for training and for validation, which share no sample."""

    training: LabelledData
    validation: LabelledData

    def join(self) -> LabelledData:
        """Returns all samples: those for training, then those for validation."""
        parts = (self.training, self.validation)
        inputs = {name: np.concatenate([part.inputs[name] for part in parts]) for name in self.training.inputs}
        return LabelledData(inputs, np.concatenate([part.labels for part in parts if part.labels is not None]))


def read_training_data(
    path: Path, inputs: Sequence[SampledInput], classes: int, validation: float, tests: Sequence[Path]
) -> TrainingData:
    """Reads and splits samples. `validation`: share for validation, the same samples in each run.

    Raises `UserError` for numbers that are not finite, for data without labels or with labels that are no class of the
    model, for a split without samples on one side, and if a sample is also in one of the files `tests`.
    """
    given = read_labelled_data(path, inputs)
    read = replace(given, inputs={i.name: convert_values(path, i, given.inputs[i.name]) for i in inputs})
    if read.labels is None:
        raise UserError(f"{spell_option('data', path)}: no labels 'y', and training needs them")
    if read.labels.max() >= classes:
        raise UserError(
            f"{spell_option('data', path)}: label {read.labels.max()}, but the model has {classes} scores; labels are "
            f"0 to {classes - 1}"
        )
    digests = digest_each(read)
    for test in tests:
        refuse_test_samples(path, digests, test, inputs)
    unique = list(dict.fromkeys(digests))
    count = round(validation * len(unique))
    if not 0 < count < len(unique):
        raise UserError(
            f"{spell_option('validation', validation)}: {count} of {len(unique)} different samples; both sides need one"
        )
    order: list[int] = np.random.default_rng(_SPLIT_SEED).permutation(len(unique)).tolist()
    held = {unique[k] for k in order[:count]}
    is_held = np.array([digest in held for digest in digests])
    return TrainingData(_select(read, ~is_held), _select(read, is_held))


def refuse_test_samples(path: Path, digests: Sequence[bytes], test: Path, inputs: Sequence[SampledInput]) -> None:
    """Raises `UserError` if one of the samples with these digests is in the labelled samples `test`."""
    tested = set(digest_each(read_labelled_data(test, inputs, option=spell_name("test"))))
    both = sum(digest in tested for digest in digests)
    if both:
        raise UserError(
            f"{spell_option('data', path)}: {both} of its {len(digests)} samples are also in "
            f"{spell_option('test', test)}; a network that is fitted to them would seem better than it is"
        )


def _select(read: LabelledData, chosen: npt.NDArray[np.bool_]) -> LabelledData:
    assert read.labels is not None, "checked by the caller"
    return LabelledData({name: values[chosen] for name, values in read.inputs.items()}, read.labels[chosen])
