"""Measure the trained network on real crossbars: `make bench-analog`.

Tables, on test images that training, quantisation and calibration of converters have not seen: each form of
quantisation, on exact crossbars, on those of ISAAC, and on chips of four devices; bits of converters against rows that
are driven at once, for the binary network and in int8; time after programming against compensation; ranges of
converters; the largest weight that is stored. `--plot FOLDER` also draws two of them as SVG files (needs matplotlib).
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import raptor
from models.trained import BINARY_MODEL, MODEL, load_images
from raptor.target.device_file import load_device
from validator.accuracy.accuracy_report import AccuracyPoint, AccuracyReport
from validator.accuracy.measure import measure_accuracy

BINARY = "binary"
"""The separately trained network with weights and activations 1 and -1, which is not quantised here."""
MIXED = "mixed"
FORMS: Mapping[str, Mapping[str, Any] | None] = {
    "float": None,
    "int8": {"per_channel": True},
    "int8, pow2": {"per_channel": True, "scheme": "pow2"},
    "int4 weights": {"per_channel": True, "weights": 4},
    MIXED: {"per_channel": True},
    BINARY: {},
}
BUDGET = {"latency": 0.8}
"""Largest latency of the mixed form, relative to the latency with 8 bits everywhere."""
CHIP: Mapping[str, Any] = {"xbar": 128, "cores": 64}
CELL_BITS = 2
DEVICES = {"pcm-aihwkit": "PCM", "reram-wan2022": "ReRAM, Wan", "reram-milo": "ReRAM, Milo", "sonos": "SONOS"}
"""Device names in the tables, keyed by device file."""
ROWS = ("16", "32", "64", "128")
BITS = tuple(str(bits) for bits in range(2, 10))
TIMES = {"20 s": "20", "1 hour": "3600", "1 day": "86400", "1 month": "2592000", "1 year": "31536000"}
MITIGATIONS = ("none", "chip", "column")
RANGES = ("full", "unit", "calibrated")
CUTS = ("1", "0.8", "0.6", "0.5", "0.4", "0.3")
TABLES = ("forms", "converters", "times", "ranges", "cuts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=600, help="test images to use")
    parser.add_argument("--chips", type=int, default=10, help="chips of each device")
    parser.add_argument("--forms", nargs="*", default=[*FORMS], choices=[*FORMS], help="forms of the first table")
    parser.add_argument("--tables", nargs="*", default=[*TABLES], choices=TABLES, help="tables to make")
    parser.add_argument("--plot", type=Path, help="folder for drawings")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, args.images)
        outs = {form: compile_form(form, folder) for form in args.forms}
        images, int8 = folder / "test.npz", outs.get("int8")
        if "forms" in args.tables:
            measure_forms(outs, images, args.chips)
        if "converters" in args.tables and BINARY in outs:
            measure_converters(outs[BINARY], images)
        if int8 is not None:
            measure_int8(int8, images, args.chips, args.tables, args.plot)


def write_images(folder: Path, images: int) -> None:
    """Writes calibration.npz, images for training, and test.npz, so many of those for tests."""
    training, test = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[:200])
    np.savez(folder / "test.npz", x=test.pixels[:images], y=test.digits[:images])


def measure(out: Path, data: Path, **options: Any) -> AccuracyReport:
    """Measures accuracy; images for training give the ranges of calibrated converters."""
    return measure_accuracy(out, data, calibration_data=data.with_name("calibration.npz"), **options)


def measure_int8(out: Path, images: Path, chips: int, tables: Sequence[str], plots: Path | None) -> None:
    if "converters" in tables:
        knee = measure_converters(out, images)
        if plots:
            draw_knee(knee, plots / "analog-converters.svg")
    if "times" in tables:
        drift = measure_drift(out, images, chips)
        if plots:
            draw_drift(drift, plots / "analog-drift.svg")
    if "ranges" in tables:
        measure_ranges(out, images)
    if "cuts" in tables:
        measure_cuts(out, images, chips)


def compile_form(form: str, folder: Path) -> Path:
    options, model = FORMS[form], BINARY_MODEL if form == BINARY else MODEL
    if options is not None and form != BINARY:
        options = dict(options, data=folder / "calibration.npz")
        if form == MIXED:
            options["policy"] = raptor.search_policy(MODEL, budget=BUDGET, cell_bits=CELL_BITS, **CHIP, **options)
            print(form, options["policy"])
        model = raptor.quantize(MODEL, **options).save(folder / f"{form}.onnx")
    cells: dict[str, Any] = {} if options is None else {"cell_bits": CELL_BITS}
    return raptor.compile(model, **CHIP, **cells).save(folder / form)


def measure_forms(outs: Mapping[str, Path], data: Path, chips: int) -> None:
    print_head("form", "onnxruntime", "exact", "ISAAC", *DEVICES.values())
    for form, out in outs.items():
        exact = measure_accuracy(out, data)
        cells = [f"{100 * (exact.reference.top1 or 0) if exact.reference else 0:.1f}", format_percent(exact)]
        if FORMS[form] is None:
            cells += [""] * (1 + len(DEVICES))
        else:
            cells.append(format_percent(measure(out, data, crossbar="sliced", device=load_device("isaac"))))
            noisy = (measure(out, data, crossbar="noisy", device=load_device(d), chips=chips) for d in DEVICES)
            cells += [format_spread(report) for report in noisy]
        print_row(form, *cells)


def measure_converters(out: Path, data: Path) -> Sequence[AccuracyPoint]:
    """Measures accuracy by rows driven at once and bits of the converters, whose range covers all sums."""
    sweep = {"rows_at_once": ROWS, "adc_bits": BITS}
    found = measure(out, data, crossbar="sliced", settings={"adc_bits": "8"}, sweep=sweep).sweep
    show("rows", BITS, found, "rows_at_once")
    return found


def measure_drift(out: Path, data: Path, chips: int) -> Sequence[AccuracyPoint]:
    """Measures accuracy of a PCM chip by time since programming and compensation of drift."""
    sweep = {"compensation": MITIGATIONS, "seconds": tuple(TIMES.values())}
    found = measure(out, data, crossbar="noisy", device=load_device("pcm-aihwkit"), sweep=sweep, chips=chips).sweep
    show("compensation", tuple(TIMES), found, "compensation")
    return found


def measure_ranges(out: Path, data: Path) -> None:
    """Measures accuracy by range and bits of the converters."""
    sweep = {"adc_range": RANGES, "adc_bits": BITS}
    found = measure(out, data, crossbar="sliced", settings={"adc_bits": "8"}, sweep=sweep, calibration=32).sweep
    show("range", BITS, found, "adc_range")


def measure_cuts(out: Path, data: Path, chips: int) -> None:
    """Measures accuracy by the largest stored weight: clipping weights reduces the effect of errors of the cells."""
    points: list[AccuracyPoint] = []
    for name, label in DEVICES.items():
        device = load_device(name)
        found = measure(out, data, crossbar="noisy", device=device, sweep={"cut_weights": CUTS}, chips=chips).sweep
        points += (replace(p, settings={"device": label, **p.settings}) for p in found)
    show("device", CUTS, points, "device")


def show(head: str, columns: Sequence[str], points: Sequence[AccuracyPoint], row: str) -> None:
    """Prints a table of top-1, %: a row for each value of the setting `row`; the lowest chip if there are several."""
    print_head(head, *columns)
    for name, line in group_points(points, row):
        print_row(name, *(format_spread(p) if len(p.chips) > 1 else format_percent(p) for p in line))


def print_head(*cells: str) -> None:
    print()
    print_row(*cells)
    print("|---" * len(cells) + "|")


def print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def group_points(points: Sequence[AccuracyPoint], row: str) -> Iterator[tuple[str, list[AccuracyPoint]]]:
    for name in dict.fromkeys(p.settings[row] for p in points):
        yield name, [p for p in points if p.settings[row] == name]


def format_percent(report: AccuracyReport | AccuracyPoint) -> str:
    return f"{100 * (report.top1 or 0):.1f}"


def format_spread(report: AccuracyReport | AccuracyPoint) -> str:
    found = [100 * (chip.top1 or 0) for chip in report.chips]
    return f"{np.mean(found):.1f} ({min(found):.1f})"


def draw_knee(points: Sequence[AccuracyPoint], path: Path) -> None:
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    _, axes = plt.subplots(figsize=(5.5, 3.4))
    for name, line in group_points(points, "rows_at_once"):
        axes.plot(  # pyright: ignore[reportUnknownMemberType] as matplotlib declares it
            [p.settings["adc_bits"] for p in line], [100 * (p.top1 or 0) for p in line], "o-", label=f"{name} rows"
        )
    save_plot(plt, axes, "bits of converters", path)


def draw_drift(points: Sequence[AccuracyPoint], path: Path) -> None:
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    _, axes = plt.subplots(figsize=(5.5, 3.4))
    for name, line in group_points(points, "compensation"):
        heights = [100 * (p.top1 or 0) for p in line]
        label = "no compensation" if name == "none" else f"a factor for each {name}"
        axes.plot([*TIMES], heights, "o-", label=label)  # pyright: ignore[reportUnknownMemberType] as above
    save_plot(plt, axes, "time since programming", path)


def save_plot(plt: Any, axes: Any, label: str, path: Path) -> None:
    plt.rcParams |= {"svg.hashsalt": "raptor", "svg.fonttype": "none", "font.size": 9}
    axes.set_xlabel(label)
    axes.set_ylabel("top-1, %")
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close()


if __name__ == "__main__":
    main()
