"""Training under errors of cells: the errors are those of simulated chips, a training helps, and repeats its bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import load_model_from_string, numpy_helper

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.target import arch
from raptor.target.device_file import load_device
from raptor.tools.cli.app import build_commands
from raptor.tools.quantise import Policy
from raptor.tools.train import train_model
from tests.paths import ROOT
from tests.project.documents import Page
from tests.tiny_models import make_model, node, random
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.programmed_chip import GroupUse, program_chip
from validator.crossbar.weight_errors import tabulate_code_errors

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
torch: Any = pytest.importorskip("torch")
COUNT = 20_000
CODES = np.array([-127, -64, 0, 20, 100])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["reram-milo", "reram-wan2022", "pcm-aihwkit", "sonos"])
def test_errors_in_training_have_the_moments_of_simulated_chips(name: str) -> None:
    """20,000 weights of each code, in 127ths of the largest weight of their channel."""
    from raptor.tools.train.weight_noise import CodeNoise, WeightNoise

    setup = make_setup("noisy", arch.load("bench"), load_device(name), {})
    matrix = np.broadcast_to(CODES, (COUNT, len(CODES)))
    array = program_chip([matrix], [GroupUse(0, 0, 8, 8, "layer")], setup).arrays[0]
    assert array.held_levels is not None
    simulated = (array.held_levels * array.factor[:, None]).sum(axis=0) + array.planes.digit_factor - CODES
    noise = WeightNoise(
        CodeNoise.from_errors(tabulate_code_errors(8, setup)),
        axis=0,
        clip=None,
        quantised=False,
        generator=torch.Generator().manual_seed(5),
    )
    weights = torch.tensor(np.tile(np.append(CODES, 127), (COUNT, 1)) * 0.01, dtype=torch.float32)
    drawn = (noise(weights) - weights).numpy()[:, :-1] / 0.01
    read = tabulate_code_errors(8, setup).read_std[CODES + 127]
    wanted = np.sqrt(simulated.std(axis=0) ** 2 + read**2)  # a simulated chip draws reads later, for each product
    assert drawn.std(axis=0) == pytest.approx(wanted, rel=0.03, abs=1e-3)
    bound = 4 * np.hypot(wanted, wanted) / np.sqrt(COUNT) + 1e-3
    assert np.all(np.abs(drawn.mean(axis=0) - simulated.mean(axis=0)) <= bound)


def test_gradients_pass_straight_through_and_large_weights_are_clipped() -> None:
    from raptor.tools.train.weight_noise import CodeNoise, WeightNoise

    weight = torch.nn.Parameter(torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 100]]))
    noise = WeightNoise(CodeNoise.uniform(4, 0.1), axis=0, clip=2.5, quantised=True)
    bound = 2.5 * float(weight.detach().std())
    slopes = torch.arange(12.0)
    (noise(weight) * slopes).sum().backward()
    assert torch.equal(weight.grad[0], slopes)
    assert float(weight.detach().max()) == pytest.approx(bound)
    assert torch.equal(noise.eval()(weight), weight)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("train")
    training, test = load_images()
    np.savez(made / "train.npz", x=training.pixels[:400], y=training.digits[:400])
    np.savez(made / "test.npz", x=test.pixels, y=test.digits)
    return made


def test_training_from_new_weights_learns_the_digits(folder: Path) -> None:
    """40 epochs, some seconds; the network as given has seen all images, so that it shows nothing."""
    found = raptor.train(
        MODEL, cells="reram-milo", data=folder / "train.npz", test=[folder / "test.npz"], noise=0.06, epochs=40,
        scratch=True,
    )  # fmt: skip
    (reached,) = found.report.tried
    assert (found.report.training, found.report.validation) == (340, 60)
    assert reached.floats >= 0.85
    assert reached.lowest >= 0.75
    model = load_model_from_string(found.onnx_bytes)
    assert {p.key: p.value for p in model.metadata_props}["raptor.train.device"] == "reram-milo"
    program = raptor.compile(
        raptor.quantize(model, data=_inputs(folder), per_channel=True).save(folder / "int8.onnx", force=True),
        xbar=128, cores=64,
    )  # fmt: skip
    assert program.validate(samples=2).passed


def _inputs(folder: Path) -> Path:
    np.savez(folder / "inputs.npz", image=load_images()[0].pixels[:20])
    return folder / "inputs.npz"


def test_the_command_repeats_its_bytes_and_chooses_on_validation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ["train", str(MODEL), "--cells", "reram-milo", "--data", "train.npz", "--epochs", "1", "--weights", "4"]
    files = ["--json", "report.json", "-o"]
    shown = CliRunner().invoke(build_commands(), [*words, *files, "a.onnx", "--shift", "1"])
    assert shown.exit_code == 0, shown.exception
    assert "340 samples for training, 60 for validation; noise" in shown.output
    assert "trained once more" not in shown.output
    assert CliRunner().invoke(build_commands(), [*words, "-o", "b.onnx", "--shift", "1", "-q"]).output == ""
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    report = __import__("json").loads(Path("report.json").read_text())
    best = min(report["tried"], key=lambda found: found["loss"])
    assert report["chosen"] == best["noise"]
    assert [found["noise"] for found in report["tried"]] == [*train_model.NOISES]


def test_a_policy_is_trained(folder: Path) -> None:
    """From new weights, with 4 bits in inputs and weights of two layers each."""
    policy = Policy(weights={"block1.depthwise": 4, "conv2": 4}, inputs={"conv2": 4, "fc1": 4})
    options: dict[str, Any] = {"data": folder / "train.npz", "noise": 0.06, "epochs": 30, "scratch": True}
    found = raptor.train(MODEL, cells="reram-milo", policy=policy, **options)
    assert found.report.policy == policy
    assert found.report.tried[0].chips >= 0.7
    program = raptor.compile(
        raptor.quantize(load_model_from_string(found.onnx_bytes), data=_inputs(folder), policy=policy, per_channel=True)
        .save(folder / "policy.onnx", force=True),
        xbar=128, cores=64,
    )  # fmt: skip
    assert program.validate(samples=1).passed


def test_a_refit_trains_once_more_with_all_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one noise is given, there is no choice, and only that training."""
    monkeypatch.setattr(train_model, "NOISES", (0.06, 0.12))
    options: dict[str, Any] = {"data": folder / "train.npz", "epochs": 1}
    once, again = (raptor.train(MODEL, cells="reram-milo", refit=refit, **options) for refit in (False, True))
    assert once.report.tried == again.report.tried
    assert (once.report.refit, again.report.refit) == (False, True)
    given = raptor.train(MODEL, cells="reram-milo", refit=True, noise=again.report.chosen, **options)
    assert given.report.tried == ()
    weights = [
        [t.raw_data for t in load_model_from_string(found.onnx_bytes).graph.initializer]
        for found in (once, again, given)
    ]
    assert weights[0] != weights[1]
    assert weights[1] == weights[2]


def test_codes_of_inputs_and_their_gradients() -> None:
    from raptor.tools.train.input_codes import InputCodes

    x = torch.tensor([-9.0, -3.4, 0.2, 3.6, 7.0, 12.0], requires_grad=True)
    values = InputCodes(7.0, 7)(x)
    assert values.tolist() == pytest.approx([-7, -3, 0, 4, 7, 7])
    values.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]


def test_ranges_of_inputs_are_those_of_the_floats() -> None:
    from raptor.tools.train.input_codes import measure_input_codes
    from raptor.tools.train.torch_graph import TorchGraph

    nodes = [node("Gemm", "x w", "h", name="first"), node("Relu", "h", "r"), node("Gemm", "r v", "y", name="second")]
    model = make_model(nodes, {"x": [1, 3]}, ["y"], {"w": np.eye(3, dtype=np.float32) * 2, "v": random(3, 2)})
    samples = {"x": torch.tensor([[[1.0, -5.0, 2.0]], [[0.5, 3.0, 0.0]]])}
    found = measure_input_codes(TorchGraph(model), {"second": 4}, samples)
    assert {name: (codes.largest, codes.most) for name, codes in found.items()} == {"second": (6.0, 7)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "much"}, "noise='much': expected auto, device, or a share of the largest weight"),
        ({"noise": 2}, "noise=2: expected a share from 0 to 1"),
        ({"epochs": 0}, "epochs=0"),
        ({"weights": 5}, "weights=5: expected 8 or 4"),
        ({"cells": "isaac"}, "its cells have no errors"),
        ({"policy": Policy(weights={"fc9": 4})}, "policy.*fc9: no layer with constant weights; layers are conv1, "),
    ],
    ids=str,
)
def test_mistakes(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        raptor.train(MODEL, **{"cells": "reram-milo", "data": folder / "train.npz", "epochs": 1, **options})


@pytest.mark.parametrize("options", [{}, {"refit": True}])
def test_a_training_that_diverges_is_refused(folder: Path, options: dict[str, Any]) -> None:
    """Its weights are no numbers, so that nothing could be chosen."""
    with pytest.raises(UserError, match=r"rate=1e\+30: the loss of epoch 1 with noise 0.06 is nan; a smaller rate"):
        raptor.train(
            MODEL, cells="reram-milo", data=folder / "train.npz", epochs=1, noise=0.06, rate=1e30, **options
        )  # fmt: skip


def test_a_model_that_is_no_classifier_is_refused(folder: Path) -> None:
    model = make_model([node("Conv", "image w", "y")], {"image": [1, 1, 8, 8]}, ["y"], {"w": random(2, 1, 3, 3)})
    with pytest.raises(UserError, match=r"output 'y' \[1, 2, 6, 6\]: training needs a classifier"):
        raptor.train(model, cells="reram-milo", data=folder / "train.npz")


def test_a_users_module_is_hardened_in_training_alone_and_exported_without_errors() -> None:
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(64, 3)
    )  # fmt: skip
    x = torch.randn(2, 1, 8, 8)
    before = module.eval()(x).detach()
    assert raptor.torch.harden(module, "reram-milo", clip=None) is module
    assert torch.equal(module(x), before)
    module.train()
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert module[0].parametrizations.weight.original.grad.abs().sum() > 0
    assert not hasattr(module[2], "parametrizations"), "depthwise layers have no errors"
    exported = raptor.torch.export(module, x)
    names = {t.name: numpy_helper.to_array(t) for t in exported.graph.initializer}
    assert any(np.array_equal(v, module.eval()[0].weight.detach().numpy()) for v in names.values())
    with pytest.raises(UserError, match="its weight has a parametrization already"):
        raptor.torch.harden(module, "reram-milo")
    with pytest.raises(UserError, match="no Conv1d, Conv2d, Conv3d or Linear layer"):
        raptor.torch.harden(nn.ReLU(), "reram-milo")


def test_a_module_that_is_refused_stays_as_it_is() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    raptor.torch.harden(module[1], "reram-milo")
    with pytest.raises(
        UserError, match=r"module: layer '1': its weight has a parametrization already; harden a module once"
    ):
        raptor.torch.harden(module, "reram-milo")
    assert not hasattr(module[0], "parametrizations")


def test_the_page_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that need PyTorch are run, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    text = (ROOT / "docs" / "how-to" / "harden.md").read_text().replace("```py\n", "```python\n")
    page = Page(text)
    page.run()
    assert page.updated() == text
