"""Writing until cells hold a matrix: single cells are written, others stay, errors fall, and writes are counted."""

import numpy as np
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.device import Device
from raptor.device.errors import DriverError, OperandError, ShapeError
from raptor.device.write_verify import write_verified

FINE = {"adc_range": "full", "adc_bits": "20", "dac_bits": "7"}
"""A row is driven with 127, so a product of one row shows a weight to a fraction of its step."""


def matrix(rows: int = 64, cols: int = 16) -> "np.ndarray":
    return np.clip(np.rint(np.random.default_rng(0).standard_normal((rows, cols)) * 40), -127, 127).astype(int)


def open_device(device: str = "reram-milo", **more: object) -> Device:
    given = {"adc_range": "full", "adc_bits": "20", "dac_bits": "7", **more}
    return raptor.device.open("analog", device=device, xbar=64, crossbars=1, settings=given)


def read(crossbar: raptor.device.Crossbar) -> "np.ndarray":
    return np.array(crossbar.matmat(np.eye(64, dtype=int) * 127).result()) / 127


@pytest.mark.parametrize("tolerance", [2, 4])
def test_errors_fall_below_the_tolerance(tolerance: int):
    with open_device() as device:
        crossbar = device.acquire()
        found = write_verified(crossbar, matrix(), tolerance=tolerance, most_writes=40)
        errors = np.abs(read(crossbar) - matrix())
        account = device.account
    assert found.converged
    assert errors.max() <= tolerance
    assert found.rms[-1] < 0.7 * found.rms[0]
    assert found.written[0] == matrix().size
    assert list(found.written) == sorted(found.written, reverse=True)
    assert account.writes == account.worst_cell == len(found.written)
    assert found.pulses_per_weight == sum(found.written) / matrix().size


def test_the_limit_of_writes_is_kept_and_told():
    with open_device() as device:
        found = write_verified(device.acquire(), matrix(), tolerance=0.5, most_writes=3)
    assert len(found.written) == 3
    assert not found.converged
    assert 0 < found.off.sum() <= found.written[-1]


def test_ideal_cells_are_written_once():
    with raptor.device.open("analog", device="reram-milo", xbar=64, crossbars=1, settings=FINE, noisy=False) as device:
        found = write_verified(device.acquire(), matrix(), tolerance=0)
    assert (found.rms, found.written, found.converged) == ((0.0,), (1024,), True)


def test_cells_outside_the_mask_and_other_rows_stay():
    with open_device() as device:
        crossbar = device.acquire()
        crossbar.write(matrix())
        before = read(crossbar)
        mask = np.zeros(matrix().shape, bool)
        mask[3, 5] = mask[60, 0] = True
        crossbar.write(matrix(), mask=mask)
        masked = read(crossbar)
        crossbar.write(matrix()[:2], row=7)
        rows = read(crossbar)
    assert ((masked != before) == mask).all()
    changed = np.flatnonzero((rows != masked).any(axis=1))
    assert changed.tolist() == [7, 8]


def test_a_mask_costs_what_it_writes():
    with open_device("reram-verify") as device:
        crossbar = device.acquire()
        crossbar.write(matrix()).result()
        before = device.account
        mask = np.zeros(matrix().shape, bool)
        mask[5, :3] = True
        crossbar.write(matrix(), mask=mask).result()
        account = device.account
    assert account.worst_cell == 2
    assert 0 < account.time_ns - before.time_ns < before.time_ns / 10


def test_refusals():
    with open_device() as device:
        crossbar = device.acquire()
        crossbar.write(matrix())
        with pytest.raises(ShapeError, match="a mask of shape"):
            crossbar.write(matrix(), mask=np.zeros((2, 2), bool))
        with pytest.raises(OperandError, match="expected booleans"):
            crossbar.write(matrix(), mask=np.zeros((64, 16), int))
        with pytest.raises(UserError, match="tolerance"):
            write_verified(crossbar, matrix(), tolerance=-1)
    with raptor.device.open("integer", xbar=64, crossbars=1) as device:
        crossbar = device.acquire()
        crossbar.write(matrix())
        with pytest.raises(DriverError, match="back end integer cannot write single cells"):
            crossbar.write(matrix(), mask=np.ones((64, 16), bool))
    with raptor.device.open("numpy", xbar=64, crossbars=1) as device, pytest.raises(UserError, match="of integers"):
        write_verified(device.acquire(), matrix(), tolerance=1)
