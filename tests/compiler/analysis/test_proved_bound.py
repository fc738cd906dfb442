"""The bound on the interval of every mapping: below every program, and said in words."""

import json
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest

import models
import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.compiler.analysis import explain as explain_module
from raptor.compiler.analysis.explain import explain
from raptor.compiler.analysis.proved_bound import JOINT, ProvedBound, prove_interval
from raptor.tools.cli import app
from tests.all_graphs.cases import make_case
from tests.pipeline import arch_file
from tests.quantised_models import quantise
from validator.bounds.__main__ import main as check_main
from validator.bounds.certificate import read_json, read_model, verify

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 0.25, "image_size": 64},
    "mobilenet_v2": {"width": 0.35, "image_size": 64},
    "shufflenet_v2": {"image_size": 64},
    "squeezenet": {"width": 0.25, "image_size": 64},
    "googlenet": {"width": 0.25, "image_size": 64},
    "efficientnet_b0": {"width": 0.25, "image_size": 64},
    "densenet121": {"image_size": 32},
    "vit_tiny": {"depth": 2, "image_size": 64},
    "bert_tiny": {"depth": 2},
    "lstm": {},
    "lenet5": {},
}


def _save(model: onnx.ModelProto, folder: Path, **options: Any) -> Path:
    return raptor.compile(model, **options).save(folder, stream_format="pim", weight_format="npz")


def _check_program(folder: Path) -> ProvedBound:
    """Checks that neither the program nor the work of one of its layers is below what is proved."""
    found, run, graph, target = explain_module._explain_program(folder, faster=False)
    work = run.work_by_node()
    shared = Counter[str]()  # by node, with all work of layers that were joined
    for joined, ns in work.items():
        shared.update(dict.fromkeys(joined.split(JOINT), ns))
    proved, certificate = prove_interval(folder, graph, target, work)
    stored = json.loads(json.dumps(certificate))
    assert verify(read_model(folder / "model.onnx"), read_json(folder / "arch.json"), stored) == Fraction(
        certificate["bound_ns"]
    )
    assert proved.bound_ns <= max(found.bounds.average, found.bounds.port)
    assert proved.bound_ns <= found.interval_ns
    assert proved.layers_ns + proved.vector_ns <= sum(work.values())
    vector = {name: float(Fraction(ns)) for name, ns in certificate["vector_ns"].items()}
    biases = _added_constants(read_model(folder / "model.onnx"))
    for layer in certificate["layers"]:
        for nodes in layer["nodes"]:
            # A layer that is computed with another one has the other's name.
            if all(shared[name] for name in nodes):
                least = float(Fraction(layer["value_ns"])) + sum(vector.pop(name, 0.0) for name in nodes)
                done = sum(shared[name] + shared[biases.get(name, "")] for name in nodes)
                assert done >= least * (1 - 1e-9), nodes
    assert [name for name, ns in vector.items() if shared[name] < ns * (1 - 1e-9)] == []
    return proved


def _added_constants(model: onnx.ModelProto) -> dict[str, str]:
    """Nodes that add a constant, by the node to whose result: the bound has a bias at its layer."""
    maker = {output: node.name for node in model.graph.node for output in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    adds = (node for node in model.graph.node if node.op_type == "Add" and constants & {*node.input})
    return {maker[name]: add.name for add in adds for name in add.input if name in maker}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("cores", [64, 200])
def test_no_program_is_faster(name: str, cores: int, tmp_path: Path):
    model = models.build(name, **SMALL[name])
    proved = _check_program(_save(model, tmp_path / "out", arch="bench", cores=cores))
    assert proved.bound_ns > 0


@pytest.mark.parametrize("options", [{"mapping": "raptor"}, {"optimize": "throughput"}, {"bits": 16}], ids=str)
def test_no_other_mapping_is_faster(options: dict[str, Any], tmp_path: Path):
    model = models.build("squeezenet", width=0.25, image_size=64)
    _check_program(_save(model, tmp_path / "out", arch="bench", cores=64, **options))


FOCUSES = ("convolution", "product", "recurrent", "pool", "elementwise", "normalisation", "movement", "all")


@pytest.mark.parametrize("seed", range(24))
def test_no_program_of_a_random_graph_is_faster(seed: int, tmp_path: Path):
    case = make_case(Random(seed), FOCUSES[seed % len(FOCUSES)])
    options = {key: value for key, value in case.options.items() if key != "rob_size"}
    try:
        out = _save(case.model, tmp_path / "out", **options)
    except CapacityError as e:
        option = {"cores": "cores", "crossbars a core": "xbars_per_core"}[e.resource]
        out = _save(case.model, tmp_path / "out", **{**options, option: e.needed})
    _check_program(out)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(models.build("lenet5"), tmp_path_factory.mktemp("proved") / "out", arch="bench")


def _call(arguments: list[str]) -> object:
    """Returns the exit status of a command."""
    with pytest.raises(SystemExit) as done:
        app.main(arguments)
    return done.value.code


def test_explain_says_why(program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert _call(["explain", str(program), "--certificate", str(program.parent / "proof.json")]) == 0
    text = capsys.readouterr().out
    found = explain(program)
    assert f"No mapping of these forms can have an interval below {found.proved.bound_ns:.3g} ns, as " in text
    assert f"That is {found.proved.bound_ns / found.interval_ns:.0%} of this one's." in text
    files = [str(program / "model.onnx"), str(program / "arch.json"), str(program.parent / "proof.json")]
    assert check_main(files) == 0


def test_only_one_json_can_be_printed(program: Path, capsys: pytest.CaptureFixture[str]):
    assert _call(["explain", str(program), "--json", "-", "--certificate", "-"]) == 2
    assert "only one of them" in capsys.readouterr().err
    assert _call(["explain", str(program), "--certificate", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1


def test_without_scipy_it_says_what_to_install(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setenv("COLUMNS", "1000")
    assert _call(["explain", str(program)]) == 0
    assert "needs scipy: pip install 'raptor-crossbar[bounds]'." in capsys.readouterr().out
    with pytest.raises(UserError, match="needs scipy"):
        explain(program, certificate=program.parent / "none.json")
    assert not (program.parent / "none.json").exists()


def test_what_it_leaves_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "1000")
    out = _save(models.build("bert_tiny", depth=1), tmp_path / "out", arch="bench")
    proved = explain(out).proved
    assert 0 < proved.left_out_ns < proved.program_ns
    assert _call(["explain", str(out)]) == 0
    assert " of work are not bounded." in capsys.readouterr().out


def test_overlapping_instructions_have_no_bound(tmp_path: Path):
    out = _save(models.build("lenet5"), tmp_path / "out", arch=arch_file(tmp_path, rob_size=4))
    assert "rob_size" in explain(out).proved.unknown
    with pytest.raises(UserError, match="rob_size"):
        explain(out, certificate=tmp_path / "none.json")


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_integers_count_products_alone(form: str, tmp_path: Path):
    model = quantise(models.build("resnet18", width=0.125, image_size=32), tmp_path, form=form)
    proved = _check_program(_save(model, tmp_path / "out", arch="bench", cores=64))
    assert proved.layers_ns > 0 == proved.vector_ns


def test_narrow_weights_have_more_columns(tmp_path: Path):
    model = raptor.quantize(models.build("lenet5"), samples=1, layers={"conv1": 4})
    proved = _check_program(_save(onnx.load_from_string(model.onnx_bytes), tmp_path / "out", arch="bench"))
    assert proved.layers_ns > 0
