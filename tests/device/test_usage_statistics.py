"""Modelled time, wear and energy, counted by hand."""

import threading
from pathlib import Path

import numpy as np
import pytest

import raptor.device
from raptor.common.errors import UserError
from raptor.device import WornError
from raptor.device.backends.ideal_crossbars import NumpyCrossbars
from raptor.target.arch import load
from raptor.target.device_file import DeviceFile, device_presets, load_device
from raptor.target.timing import mvmul_ns
from tests.device.boards import SlowCrossbars, info, opened

EYE, ONES = np.eye(4, dtype=np.float32), np.ones(4, np.float32)


def device_file(unit: str = "row", **fields: object) -> DeviceFile:
    write = {"unit": unit, "ns": 10.0, "pj_per_cell": 2.0, "at_once": fields.pop("at_once", None)}
    product = {"ns": 100.0, "pj_per_cell": 0.5}
    return DeviceFile.model_validate(
        {"version": 1, "name": "test", "source": "none", "write": write, "product": product, **fields}
    )


@pytest.mark.parametrize(("unit", "ns", "cells", "worst"), [("cell", 120, 12, 2), ("row", 30, 18, 2)])
def test_a_write_by_unit(unit: str, ns: float, cells: int, worst: int):
    with opened(NumpyCrossbars(info(1, 3, weight_bits=8, cell_bits=4)), device_file(unit)) as device:
        x = device.acquire()
        x.write(np.ones((3, 2)))
        account = device.account
        assert (account.time_ns, account.cells_written) == (ns, cells)
        assert account.pj_write == 2.0 * cells
        x.write(np.ones((1, 2)), row=1)
        assert device.account.worst_cell == worst


def test_a_write_of_a_whole_crossbar_wears_all_of_it():
    with opened(NumpyCrossbars(info(1)), device_file("crossbar")) as device:
        x = device.acquire()
        x.write(EYE)
        x.write(EYE[:1], row=0)
        x.write(EYE[:1], row=3)
        assert (device.account.cells_written, device.account.worst_cell, device.account.time_ns) == (48, 3, 30)


def test_time_of_a_chain_and_of_crossbars_beside_each_other():
    with opened(NumpyCrossbars(info()), device_file()) as device:
        a, b = device.acquire(), device.acquire()
        a.write(EYE)  # 0 to 40
        b.write(EYE[:, :2])  # 0 to 40
        y = a.matvec(ONES)  # 40 to 140
        assert (y.ready_ns, b.matvec(y).ready_ns) == (140, 240)
        assert b.matvec(ONES).ready_ns == 340
        assert (device.account.time_ns, device.account.busy_ns) == (340, 40 + 40 + 100 + 100 + 100)
        assert device.account.pj_product == 0.5 * (16 + 8 + 8)


def test_who_waits_for_a_result_goes_on_at_its_time():
    with opened(NumpyCrossbars(info()), device_file()) as device:
        a, b = device.acquire(), device.acquire()
        a.write(EYE)
        b.write(EYE)
        y = a.matvec(ONES).result()
        assert b.matvec(y).ready_ns == 240  # not 140: y was there at 140 only


def test_a_barrier_is_a_wait():
    with opened(NumpyCrossbars(info()), device_file()) as device:
        a, b = device.acquire(), device.acquire()
        a.write(EYE)
        a.matvec(ONES)
        device.barrier()
        assert b.write(EYE).ready_ns == 180


def test_another_thread_has_its_own_time():
    with opened(NumpyCrossbars(info()), device_file()) as device:
        a, b = device.acquire(), device.acquire()
        a.write(EYE).result()
        ready: list[float] = []
        thread = threading.Thread(target=lambda: ready.append(b.write(EYE).ready_ns))
        thread.start()
        thread.join()
        assert ready == [40]


def test_writers_that_are_too_few_make_writes_wait():
    with opened(NumpyCrossbars(info(3)), device_file(at_once=2)) as device:
        handles = [device.acquire() for _ in range(3)]
        assert [x.write(EYE).ready_ns for x in handles] == [40, 40, 80]


def test_time_does_not_depend_on_when_answers_come():
    def program(device: raptor.device.Device, answer: object) -> raptor.device.Account:
        a, b = device.acquire(), device.acquire()
        a.write(EYE)
        b.write(2 * EYE)
        y = a.matvec(ONES)
        b.write(EYE[:2], row=1)
        b.matvec(y)
        getattr(answer, "answer_all", int)()
        return device.account

    slow = SlowCrossbars(info())
    with opened(NumpyCrossbars(info())) as ideal, opened(slow) as late:
        assert program(ideal, ideal.back_end) == program(late, slow)


def test_years():
    file = device_file(endurance_cycles=1000)
    with opened(NumpyCrossbars(info(1)), file) as device:
        x = device.acquire()
        for _ in range(5):
            x.write(EYE[:2])  # 20 ns each: a cell is written 5e7 times a second
        account = device.account
        year = 365.25 * 24 * 3600
        assert account.years == pytest.approx(1000 / 5e7 / year)
        assert account.years_spread == pytest.approx(2 * 1000 / 5e7 / year)  # half of the cells are never written
    with opened(NumpyCrossbars(info(1)), device_file()) as device:
        assert (device.account.years, device.account.years_spread) == (None, None)


def test_a_worn_cell_is_refused_on_request():
    with opened(NumpyCrossbars(info(1)), device_file(endurance_cycles=2), refuse_worn=True) as device:
        x = device.acquire()
        x.write(EYE[:2])
        x.write(EYE[:1], row=1)
        with pytest.raises(WornError, match="crossbar 0: a cell was written 2 times, and test endures 2 writes"):
            x.write(EYE)
        assert (device.account.writes, x.matvec(ONES[:2]).result()[0]) == (2, 2)
        x.write(EYE[:1], row=0)


def test_a_product_takes_what_the_architecture_says():
    with raptor.device.open("numpy", xbar=128, crossbars=1) as device:
        x = device.acquire()
        written = x.write(np.eye(128)).ready_ns
        assert written == 10970
        assert x.matvec(np.ones(128)).ready_ns == written + mvmul_ns(load(xbar=128), 1)
        assert "puma-simulator" in device.source


def test_presets():
    assert {"pcm-occ", "reram-puma", "reram-verify", "sram"} < set(device_presets())
    times = {name: d.write.time_ns(128, 128 * 128) for name in device_presets() if (d := load_device(name)).write.ns}
    assert times["reram-puma"] == 10970
    assert times["reram-verify"] == pytest.approx(1.09e6, rel=1e-3)


def test_device_files_that_are_wrong(tmp_path: Path):
    (tmp_path / "d.json").write_text('{"version": 1, "name": "x", "source": "y", "write": {"unit": "mile", "ns": 1.0}}')
    with pytest.raises(UserError, match=r"write\.unit"):
        load_device(tmp_path / "d.json")
    with pytest.raises(UserError, match="no such file; give a file or one of: isaac"):
        load_device("nosuch")
