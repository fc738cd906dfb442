"""Measurements of accuracy that are made up."""

import numpy as np

from validator.accuracy.accuracy_report import AccuracyPoint, AccuracyReport, ChipResult, LayerNoise
from validator.accuracy.statistics import ConfidenceInterval
from validator.crossbar.lossless_proof import LayerProof

CHIP = ChipResult(seed=3, top1=0.75, top5=0.9, agreement=0.8, top1_interval=ConfidenceInterval(0.7, 0.8))


def measured(model: str, layer: str = "conv") -> AccuracyReport:
    """Makes the measurement of a noisy device, with a sweep of two settings."""
    points = [
        AccuracyPoint(
            {"adc_bits": bits, "rows_at_once": rows}, 0.1 * int(bits), ConfidenceInterval(0.1, 0.9), 0.5, (CHIP,)
        )
        for rows in ("64", "128")
        for bits in ("4", "5")
    ]
    return AccuracyReport(
        model=model,
        crossbar="noisy",
        device="made-up",
        settings={"converters": "8 bits, full"},
        samples=40,
        top1=0.75,
        top5=0.9,
        agreement=0.8,
        top1_of_chips=None,
        reference=ChipResult(None, 0.95, 1.0, 1.0, None),
        chips=(CHIP,),
        layers=(LayerNoise(layer, "y", 21.5), LayerNoise("head", "z", np.inf)),
        converters=(LayerProof(layer, 4, 64, 2, columns=100, losing=25, largest=300, needed_bits=9, conversions=800),),
        cells_per_weight=4,
        sweep=tuple(points),
    )
