"""Top-1 accuracy of a float model by onnxruntime."""

from pathlib import Path

import numpy as np
from onnx import ModelProto

from raptor.common.errors import UserError
from raptor.output.files import TensorPlace
from raptor.tools.quantise.calibration_data import read_sampled_inputs
from raptor.tools.quantise.ort_quantizer import OrtSession
from validator.accuracy.labelled_data import read_labelled_data


def measure_top1(model: ModelProto, data: Path) -> float:
    """Returns the share of labelled samples whose label has the largest score in the first output.

    Raises `UserError` for data that do not fit the model, and for a model with one score.
    """
    places = [
        TensorPlace(name=i.name, shape=i.shape, image_shape=i.shape, channel_axis=0, tiles=())
        for i in read_sampled_inputs(model)
    ]
    read = read_labelled_data(data, places)
    if read.labels is None:
        raise UserError(f"{data}: has no labels, without which there is no accuracy")
    session, output, right = OrtSession(model), model.graph.output[0].name, 0
    for number, label in enumerate(read.labels.tolist()):
        sample = {name: values.astype(np.float32) for name, values in read.sample(number).items()}
        scores = session.run(sample)[output].reshape(-1)
        if not 0 <= label < len(scores) or len(scores) < 2:
            raise UserError(f"{data}: label {label} of sample {number}, but the model has {len(scores)} scores")
        right += int(np.argmax(scores)) == label
    return right / read.count
