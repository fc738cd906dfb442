"""The checker of certificates: what it accepts, what it refuses, and that it needs neither compiler nor solver."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import models
from raptor.compiler.analysis.bound_program import find_certificate
from tests.paths import ROOT
from tests.validator.bounds.support import arch_file, network, prove
from validator.bounds import certificate
from validator.bounds.__main__ import main
from validator.bounds.certificate import compute_layer_value, verify
from validator.bounds.chip_times import CertificateRefused

Change = Callable[[dict[str, Any]], object]


def _largest(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the largest layer of one form, whose prices are tight."""
    alone = [layer for layer in given["layers"] if len(layer["prices"]) == 1]
    return max(alone, key=lambda layer: Fraction(layer["value_ns"]))


def _price(given: dict[str, Any], factor: Fraction | int, *, consistent: bool = False) -> None:
    """Multiplies the largest price of the largest layer, and changes its value to match if `consistent`."""
    layer = _largest(given)
    prices = layer["prices"][0][0]
    at = max(range(4), key=lambda i: Fraction(prices[i]))
    prices[at] = str(Fraction(prices[at]) * factor)
    if consistent:
        index = given["layers"].index(layer)
        exact = [[[Fraction(x) for x in part] for part in form] for form in layer["prices"]]
        layer["value_ns"] = str(compute_layer_value(network().work.layers[index], Fraction(layer["alpha"]), exact))


def _times(given: dict[str, Any], key: str, factor: Fraction) -> None:
    given[key] = str(Fraction(given[key]) * factor)


def _vector(given: dict[str, Any], factor: Fraction) -> None:
    name = max(given["vector_ns"], key=lambda n: Fraction(given["vector_ns"][n]))
    _times(given["vector_ns"], name, factor)


_MORE, _LESS = Fraction(1001, 1000), Fraction(999, 1000)
_CHANGES: dict[str, Change] = {
    "a price x 1.001": lambda g: _price(g, _MORE),
    "a price x 0.999": lambda g: _price(g, _LESS),
    "a price x 0.999, and the value to match": lambda g: _price(g, _LESS, consistent=True),
    "a price below 0": lambda g: _price(g, -1),
    "five prices": lambda g: _largest(g)["prices"][0][0].append("0"),
    "no prices": lambda g: _largest(g).update(prices=[]),
    "a value x 1.001": lambda g: _times(_largest(g), "value_ns", _MORE),
    "a value x 0.999": lambda g: _times(_largest(g), "value_ns", _LESS),
    "vector work x 1.001": lambda g: _vector(g, _MORE),
    "vector work x 0.999": lambda g: _vector(g, _LESS),
    "vector work of a node that has none": lambda g: g["vector_ns"].update(other="1"),
    "alpha above v": lambda g: _largest(g).update(alpha="1/1000"),
    "v below 0": lambda g: g.update(v="-1"),
    "v above 0": lambda g: g.update(v="1"),
    "a crossbar more": lambda g: _largest(g).update(held_xbars=_largest(g)["held_xbars"] + 1),
    "a layer left out": lambda g: g["layers"].pop(),
    "a layer twice": lambda g: g["layers"].append(g["layers"][0]),
    "layers in another order": lambda g: g["layers"].reverse(),
    "a node of another layer": lambda g: _largest(g)["nodes"].append(["other"]),
    "cores": lambda g: g.update(cores=g["cores"] + 1),
    "port": lambda g: _times(g, "port_ns", _MORE),
    "bound x 1.000001": lambda g: _times(g, "bound_ns", Fraction(1000001, 1000000)),
    "bound of infinity": lambda g: g.update(bound_ns="1e400"),
    "bound as a float": lambda g: g.update(bound_ns=1.5),
    "bound divided by 0": lambda g: g.update(bound_ns="1/0"),
    "another version": lambda g: g.update(version=0),
    "wider sums": lambda g: g.update(sum_bits=16),
    "wider inputs": lambda g: g.update(input_bits=16),
    "no bits": lambda g: g.update(weight_bits=0),
    "an input of another shape": lambda g: g.update(inputs={"input": [1, 3, 64, 64]}),
    "layers of another type": lambda g: g.update(layers="none"),
    "nothing": lambda g: g.clear(),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_a_changed_certificate_is_refused(change: Change):
    proved = network()
    given = copy.deepcopy(proved.certificate)
    change(given)
    with pytest.raises(CertificateRefused):
        verify(proved.model, proved.arch, given)


def test_what_is_found_is_proved():
    proved = network()
    assert verify(proved.model, proved.arch, proved.certificate) == Fraction(proved.certificate["bound_ns"]) > 0


def test_a_smaller_claim_is_accepted():
    proved = network()
    given = proved.certificate | {"bound_ns": "1"}
    assert verify(proved.model, proved.arch, given) == Fraction(proved.certificate["bound_ns"])


def _chip(**changes: Any) -> dict[str, Any]:
    arch = copy.deepcopy(network().arch)
    for section in (arch["chip_config"], *(arch["chip_config"]["core_config"][k] for k in ("matrix_config",))):
        section |= {key: value for key, value in changes.items() if key in section}
    return arch


@pytest.mark.parametrize("changes", [{"core_cnt": 288}, {"adc_latency_cycle": 19}, {"period": Fraction(9, 10)}])
def test_a_certificate_of_a_slower_chip_is_refused(changes: dict[str, Any]):
    with pytest.raises(CertificateRefused):
        verify(network().model, _chip(**changes), network().certificate)


def test_a_slower_chip_accepts_the_prices():
    """A product costs more there, so none covers more than it costs."""
    proved = network()
    assert verify(proved.model, _chip(adc_latency_cycle=21), proved.certificate) >= Fraction(
        proved.certificate["bound_ns"]
    )


def test_another_model_is_refused():
    other = models.build("mobilenet_v2", width=0.35, image_size=64)
    with pytest.raises(CertificateRefused):
        verify(other, network().arch, network().certificate)


def test_overlapping_instructions_are_refused():
    with pytest.raises(CertificateRefused, match="rob_size"):
        verify(network().model, arch_file(rob_size=2), network().certificate)


@pytest.mark.parametrize("denominator", [10**15, 7**40], ids=["64 bits do not do", "large"])
def test_numbers_of_any_size_are_exact(denominator: int):
    """Prices with large denominators need integers of any size; a last unit too much is refused."""
    proved = network()
    given = copy.deepcopy(proved.certificate)
    index = given["layers"].index(_largest(given))
    claim, layer = given["layers"][index], proved.work.layers[index]
    prices = [[[Fraction(x) for x in part] for part in form] for form in claim["prices"]]
    at = max(range(4), key=lambda i: prices[0][0][i])
    tight = prices[0][0][at]

    def accepted(price: Fraction) -> bool:
        prices[0][0][at] = price
        try:
            compute_layer_value(layer, Fraction(0), prices)
        except CertificateRefused:
            return False
        return True

    low, high = 0, denominator  # the largest price that is accepted, in units of 1 / denominator above `tight`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(tight + Fraction(middle, denominator)) else (low, middle)
    assert accepted(tight + Fraction(low, denominator))
    assert not accepted(tight + Fraction(low + 1, denominator))


def test_crossbars_bind_on_a_full_chip():
    """With barely enough crossbars, weights that must stay in them raise the bound above even work."""
    model = models.build("vgg16", width=0.25, image_size=32)
    few = arch_file("bench")
    few["chip_config"]["core_config"]["matrix_config"]["xbar_array_count"] = 4
    held = sum(layer.held_xbars * len(layer.nodes) for layer in prove(model, arch_file()).work.layers)
    few["chip_config"]["core_cnt"] = held // 4 + 2
    proved = prove(model, few)
    without = find_certificate(proved.work, crossbars=False)
    assert Fraction(proved.certificate["v"]) > 0 == Fraction(without["v"])
    assert verify(model, few, proved.certificate) > Fraction(without["bound_ns"]) * Fraction(11, 10)


def test_weights_that_do_not_fit_have_no_bound():
    few = arch_file()
    few["chip_config"]["core_cnt"] = few["chip_config"]["core_config"]["matrix_config"]["xbar_array_count"] = 1
    given = network().certificate | {"cores": 1, "v": "1000"}
    with pytest.raises(CertificateRefused):
        verify(network().model, few, given)


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    proved = network()
    (tmp_path / "model.onnx").write_bytes(proved.model.SerializeToString())
    (tmp_path / "arch.json").write_text(json.dumps(proved.arch, default=float))
    (tmp_path / "proof.json").write_text(json.dumps(proved.certificate))
    return [str(tmp_path / name) for name in ("model.onnx", "arch.json", "proof.json")]


def test_the_command(saved: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(saved) == 0
    assert capsys.readouterr().out.startswith("no mapping of these forms has an interval below ")
    given = json.loads(Path(saved[2]).read_text())
    Path(saved[2]).write_text(json.dumps(given | {"bound_ns": "1000000000"}))
    assert main(saved) == 1
    assert "it claims 1000000000.000 ns, and proves" in capsys.readouterr().err


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999999999}'])
def test_rubbish_is_an_error_without_traceback(
    saved: list[str], at: int, content: bytes, capsys: pytest.CaptureFixture[str]
):
    Path(saved[at]).write_bytes(content)
    assert main(saved) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_large_and_missing_files(saved: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert main([*saved[:2], "/nowhere"]) == 2
    monkeypatch.setattr(certificate, "JSON_LIMIT_BYTES", 100)
    assert main(saved) == 2
    assert "larger than 100 bytes" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_it_needs_no_compiler_and_no_solver(saved: list[str]):
    code = (
        "import sys; from validator.bounds.__main__ import main; main(sys.argv[1:]); "
        "print([name for name in sys.modules if name.split('.')[0] in ('raptor', 'scipy')])"
    )
    done = subprocess.run([sys.executable, "-c", code, *saved], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
