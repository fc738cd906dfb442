"""Measure the accuracy of the trained network in each form of quantisation: `make bench-accuracy`.

Each form is quantised with images of the training set, and judged on the 600 test images: by onnxruntime with
optimisations off, and by the instruction streams that `raptor compile` makes of it, executed by the validator. The last
columns compare both: images for which the largest score is another, and scores that differ. `--no-streams` leaves out
the streams. A form that cannot be compiled is listed with the reason.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs] it has none

import raptor
from models.trained import MODEL, DigitImages, load_images
from raptor.common.errors import RaptorError
from validator.execution.run import run_program
from validator.load.output_directory import load_output

FORMS: Mapping[str, Mapping[str, Any] | None] = {
    "float": None,
    "s8s8": {"scheme": "s8s8"},
    "s8s8 per channel": {"scheme": "s8s8", "per_channel": True},
    "u8s8": {"scheme": "u8s8"},
    "u8s8 per channel": {"scheme": "u8s8", "per_channel": True},
    "pow2": {"scheme": "pow2"},
    "pow2 per channel": {"scheme": "pow2", "per_channel": True},
    "4-bit weights": {"weights": 4},
    "4-bit weights per channel": {"weights": 4, "per_channel": True},
    "4-bit weights, pow2": {"weights": 4, "scheme": "pow2"},
    "16-bit activations": {"activations": 16},
}
CALIBRATION = 200
"""Number of training images for calibration."""


@dataclass(frozen=True, slots=True)
class FormAccuracy:
    """Results of a form. `snr_db`: signal-to-noise ratio of the scores in calibration; None for the float model.

    `wanted`, `found`: accuracy on the test images of onnxruntime and of the streams. `other`: images that the two
    classify differently; `differ`: scores that are not equal. `fault`: reason if there are no streams.
    """

    form: str
    size_bytes: int
    snr_db: float | None
    wanted: float
    found: float | None = None
    other: int = 0
    differ: int = 0
    fault: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--no-streams", action="store_true", help="only onnxruntime")
    parser.add_argument("--images", type=int, default=600, help="test images to use")
    parser.add_argument("--xbar", default="64", help="crossbar size")
    parser.add_argument("--cores", type=int, default=32, help="cores of the chip")
    args = parser.parse_args()
    if unknown := [name for name in args.forms if name not in FORMS]:
        parser.error(f"no form {unknown[0]!r}; there are: {', '.join(FORMS)}")
    _, test = load_images()
    test = DigitImages(test.pixels[: args.images], test.digits[: args.images])
    chip = None if args.no_streams else {"xbar": args.xbar, "cores": args.cores}
    with tempfile.TemporaryDirectory() as folder:
        data = write_calibration(Path(folder))
        rows = [measure_form(name, data, test, chip, Path(folder)) for name in args.forms or FORMS]
    show(rows, len(test.digits))


def write_calibration(folder: Path) -> Path:
    """Writes the images that give ranges of activations: the first of those for training. Returns their file."""
    training, _ = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[:CALIBRATION])
    return folder / "calibration.npz"


def measure_form(
    form: str, data: Path, test: DigitImages, chip: Mapping[str, Any] | None, folder: Path
) -> FormAccuracy:
    options, path, snr_db = FORMS[form], MODEL, None
    if options is not None:
        quantised = raptor.quantize(MODEL, data=data, **options)
        path, snr_db = quantised.save(folder / "quantised.onnx", force=True), quantised.report.snr_db
    wanted = np.stack([*run_onnxruntime(path, test)])
    row = FormAccuracy(form, path.stat().st_size, snr_db, accuracy(wanted, test))
    if chip is None:
        return row
    try:
        program = raptor.compile(path, **chip)
        out = program.save(folder / "out", stream_format="pim", weight_format="npz", force=True)
        found = np.stack([*run_streams(out, test)])
    except RaptorError as error:
        return FormAccuracy(form, row.size_bytes, snr_db, row.wanted, fault=str(error).splitlines()[0])
    other = int((found.argmax(1) != wanted.argmax(1)).sum())
    return FormAccuracy(
        form, row.size_bytes, snr_db, row.wanted, accuracy(found, test), other, int((found != wanted).sum())
    )


def accuracy(scores: "np.ndarray", test: DigitImages) -> float:
    return float((scores.argmax(1) == test.digits).mean())


def run_onnxruntime(path: Path, test: DigitImages) -> Iterator["np.ndarray"]:
    ort: Any = onnxruntime
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    for pixels in test.pixels:
        yield session.run(None, {"image": pixels[None]})[0][0]


def run_streams(out: Path, test: DigitImages) -> Iterator["np.ndarray"]:
    program = load_output(out)
    for pixels in test.pixels:
        yield run_program(program, {"image": pixels[None]}).outputs["scores"][0]


def show(rows: list[FormAccuracy], images: int) -> None:
    print("| form | kB | outputs, dB | onnxruntime | streams | scores that differ | images that differ |")
    print("|---|---:|---:|---:|---:|---|---:|")
    for row in rows:
        snr = "" if row.snr_db is None else f"{row.snr_db:.1f}"
        cells = (
            row.form,
            f"{row.size_bytes / 1000:.1f}",
            snr,
            f"{100 * row.wanted:.2f} %",
            *format_comparison(row, images),
        )
        print("|", " | ".join(cells), "|")
    for row in rows:
        if row.fault:
            print(f"{row.form}: no streams: {row.fault}")


def format_comparison(row: FormAccuracy, images: int) -> tuple[str, ...]:
    if row.found is None:
        return "", "", ""
    return f"{100 * row.found:.2f} %", f"{row.differ} of {10 * images}", f"{row.other}"


if __name__ == "__main__":
    main()
