"""Makes crosssim.json with CrossSim: `python make_vectors.py PATH_OF_CROSS_SIM > crosssim.json`.

CrossSim (https://github.com/sandialabs/cross-sim, BSD-3) is no dependency: it needs numpy and scipy in an environment
of its own. The vectors were made with commit 0a2eb1eda183326ef4d98d792995c721105d3726. Inputs have 7 bits and no sign,
in steps of one bit; each step and slice has its conversion. Ranges are odd numbers of levels, so that no sum lies
between two codes.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])

import numpy as np
from simulator import AnalogCore, CrossSimParameters
from simulator.devices.device import Device
from simulator.parameters.core_parameters import BitSlicedCoreStyle, CoreStyle, OffsetCoreStyle
from simulator.parameters.xbar_parameters import ADCRangeLimits

CONVERSIONS = ((5, 41), (6, 193), (7, 193), (8, 193), (9, 255))
"""Bits of a converter, and the largest sum in levels."""
DEVICES = {"reram-milo": ("RRAMMilo", 1 / 225e-6, 1 / 50e-6), "sonos": ("SONOS", 1 / 16e-6, 1e9)}
"""Model of CrossSim, and the resistances of its highest and its lowest level."""
COUNT = 200_000


def parameters(style: BitSlicedCoreStyle, slices: int) -> CrossSimParameters:
    p = CrossSimParameters()
    p.core.style, p.core.bit_sliced.style = CoreStyle.BITSLICED, style
    p.core.bit_sliced.num_slices, p.core.weight_bits = slices, 8
    p.core.offset.style = OffsetCoreStyle.DIGITAL_OFFSET
    p.core.balanced.subtract_current_in_xbar = True
    p.core.rows_max = p.core.cols_max = 256
    p.core.mapping.weights.clipping, p.core.mapping.weights.percentile = True, 1.0
    p.core.mapping.inputs.mvm.clipping = True
    p.core.mapping.inputs.mvm.min, p.core.mapping.inputs.mvm.max = 0, 127
    p.xbar.device.cell_bits, p.xbar.device.infinite_on_off_ratio = 8 // slices, True
    dac = p.xbar.dac.mvm
    dac.model, dac.bits, dac.signed, dac.input_bitslicing, dac.slice_size = "QuantizerDAC", 7, False, True, 1
    signed = style is BitSlicedCoreStyle.BALANCED
    p.xbar.adc.mvm.model = "SignMagnitudeADC" if signed else "QuantizerADC"
    p.xbar.adc.mvm.signed = signed
    p.xbar.adc.mvm.adc_range_option = ADCRangeLimits.CALIBRATED
    p.xbar.adc.mvm.adc_per_ibit = True
    return p


def products(encoding: str, slices: int, bits: int, largest: int) -> dict:
    signed = encoding == "differential_analog"
    p = parameters(BitSlicedCoreStyle.BALANCED if signed else BitSlicedCoreStyle.OFFSET, slices)
    one = 2 ** (8 // slices) - 1
    p.xbar.adc.mvm.bits = bits
    p.xbar.adc.mvm.calibrated_range = np.array([[-largest / one if signed else 0, largest / one]] * slices)
    found = AnalogCore(np.ascontiguousarray(matrix.T, float), p) @ x.astype(float)
    cells = {"encoding": encoding, "cell_bits": 8 // slices, "adc_bits": bits, "largest": largest}
    return {**cells, "products": [round(float(y), 6) for y in found]}


def spreads(model: str, least_ohm: float, most_ohm: float) -> list[float]:
    """Standard deviations of 16 levels after programming, in shares of the range of conductances."""
    p = CrossSimParameters()
    device = p.xbar.device
    device.Rmin, device.Rmax, device.cell_bits = least_ohm, most_ohm, 4
    device.programming_error.enable, device.programming_error.model = True, model
    if model == "SONOS":
        device.Vread = 0.1
    made = Device.create_device(device)
    low = least_ohm / most_ohm
    levels = low + (1 - low) * np.arange(16) / 15
    return [float((made.programming_error(np.full(COUNT, g)) / (1 - low)).std()) for g in levels]


rng = np.random.default_rng(0)
matrix, x = rng.integers(-127, 128, (64, 10)), rng.integers(0, 128, 64)
matrix[0, 0] = 127
np.random.seed(0)
styles = [("offset", 4), ("differential_analog", 4), ("offset", 8), ("offset", 2)]
print(
    json.dumps(
        {
            "matrix": matrix.tolist(),
            "x": x.tolist(),
            "cases": [products(*style, *conversion) for style in styles for conversion in CONVERSIONS],
            "spreads": {name: spreads(*of) for name, of in DEVICES.items()},
        }
    )
)
