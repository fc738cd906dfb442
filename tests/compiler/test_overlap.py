"""Programs whose samples overlap: a core begins a sample before other cores have ended the one before."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import models
import raptor
from raptor.common.errors import UserError, VerifyError
from raptor.compiler import stage_search
from raptor.compiler.analysis.explain import explain
from raptor.mapping.scheduling import sample_stages
from raptor.mapping.scheduling.order_selection import StepOrder
from raptor.mapping.scheduling.sample_stages import WORTH_STAGES, StageOrder, named_stages
from raptor.pim import sample_versions
from raptor.spatial import Schedule
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.spatial.verification.verify_placed import verify_schedule
from raptor.target import isa
from tests.graphs import models as random_models
from tests.pipeline import passes
from tests.stateful_models import recurrent_step
from tests.tiny_models import make_model, node, random
from validator.checks import check
from validator.errors import ProgramError
from validator.execution.run import run_program
from validator.load.output_directory import load_output
from validator.validate import validate

CHIP: dict[str, Any] = {"cores": 30}
QUICK = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)
EQUAL: tuple[dict[str, Any], ...] = ({}, {"overlap": 1})


def with_stages(
    model: Any, folder: Path, interval_ns: float, sample: int = 0, method: str = "modulo", **options: Any
) -> raptor.Program:
    """Compiles a model by its own mapping, in which samples overlap by a modulo schedule, or slices of time."""
    stored = folder / "mapping.json"
    options = {**CHIP, **options}
    raptor.compile(model, emit_mapping=stored, **options)
    text = json.loads(stored.read_text())
    text["decision"]["flow"]["stages"] = {
        "interval_ns": interval_ns,
        "patience_ns": 0.0,
        "sample": sample,
        "method": method,
    }
    stored.write_text(json.dumps(text))
    return raptor.compile(model, mapping=stored, **options)


def small_int8() -> Any:
    """A quantised LeNet-5."""
    return onnx.load_from_string(raptor.quantize(models.build("lenet5", seed=0)).onnx_bytes)


def saved(program: raptor.Program, folder: Path) -> Path:
    program.save(folder)
    return folder


def delays_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "resident.json").read_text()).get("delays", [])


def rewrite(folder: Path, name: str, text: dict[str, Any]) -> None:
    """Writes a JSON file of the same size as before."""
    size = (folder / name).stat().st_size
    (folder / name).write_text(json.dumps(text, separators=(",", ":")).ljust(size))


@pytest.fixture(scope="module")
def model() -> Any:
    return models.build("resnet8", seed=0)


@pytest.mark.parametrize(("interval_ns", "delay"), [(120_000.0, 2), (150_000.0, 1)])
def test_each_output_is_of_its_own_sample(model: Any, tmp_path: Path, interval_ns: float, delay: int):
    folder = saved(with_stages(model, tmp_path, interval_ns), tmp_path / "out")
    assert delays_of(folder) == [{"output": "fc_output", "passes": delay}]
    assert validate(folder, samples=delay + 5).verdict == "pass"
    assert not [finding for finding in check(folder) if finding.severity.value != "note"]


@pytest.mark.parametrize(("slice_ns", "delay"), [(120_000.0, 1), (80_000.0, 2)])
def test_slices_of_time_are_stages(model: Any, tmp_path: Path, slice_ns: float, delay: int):
    folder = saved(with_stages(model, tmp_path, slice_ns, method="slices"), tmp_path / "out")
    assert delays_of(folder) == [{"output": "fc_output", "passes": delay}]
    assert validate(folder, samples=delay + 5).verdict == "pass"
    assert not [finding for finding in check(folder) if finding.severity.value != "note"]


def test_a_constant_that_is_read_before_it_is_made(tmp_path: Path):
    """Constants stay: what computes from one of a later stage must not run after power-up, where nothing is there."""
    constants: dict[str, Any] = {"scale": np.float32(1 / 64), "zero": np.uint8(128), "zero8": np.int8(0)}
    constants["k"] = np.arange(-96, 96, 12, dtype=np.int8).reshape(1, 4, 1, 4)
    codes = [("x", "a"), ("b", "c"), ("d", "e")]
    first, second, third = (
        [
            node("QuantizeLinear", f"{given} scale zero", f"{to}.q", name=f"{to}.q"),
            node("DequantizeLinear", f"{to}.q scale zero", to, name=to),
        ]
        for given, to in codes
    )
    pool = node("AveragePool", "a", "b", kernel_shape=[3, 1], pads=[1, 0, 1, 0], name="b")
    added = [node("DequantizeLinear", "k scale zero8", "real", name="real"), node("Add", "c real", "d", name="d")]
    nodes = [*first, pool, *second, *added, *third]
    chain = make_model(nodes, {"x": (1, 4, 5, 4)}, ["e"], constants, opset=21, ir_version=10)
    program = with_stages(chain, tmp_path, 2_000.0, method="slices", cores=2, resident_constants=True)
    folder = saved(program, tmp_path / "out")
    assert delays_of(folder) == [{"output": "e", "passes": 3}]
    assert validate(folder, samples=6).verdict == "pass"


def test_lines_of_several_samples_repeat_an_operand_apart(tmp_path: Path):
    """A core scales lines of two samples in one pass, each by the means of its own sample."""
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1], name="first"),
        node("GlobalAveragePool", "a", "m", name="means"),
        node("Mul", "a m", "s", name="scale"),
        node("Conv", "s v", "y", pads=[1, 1, 1, 1], name="last"),
    ]
    constants = {"u": random(8, 4, 3, 3), "v": random(8, 8, 3, 3, seed=1)}
    model = make_model(nodes, {"x": (1, 4, 8, 6)}, ["y"], constants)
    folder = saved(with_stages(model, tmp_path, 4_000.0, cores=4), tmp_path / "out")
    assert validate(folder, samples=6).verdict == "pass"


def test_outputs_that_share_a_part_have_one_delay(tmp_path: Path):
    """The first layer is an output, and a part of another one whose other part is made much later."""
    layers = [node("Conv", f"t{k} w", f"t{k + 1}", pads=[1, 1, 1, 1], name=f"layer{k}") for k in range(12)]
    nodes = [*layers, node("Concat", "t1 t12", "both", axis=1)]
    chain = make_model(nodes, {"t0": (1, 4, 16, 16)}, {"both": 4, "t1": 4}, {"w": random(4, 4, 3, 3) / 6})
    chip: dict[str, Any] = {"xbar": (32, 32), "xbars_per_core": 8, "cores": 24}
    latency_ns = raptor.compile(chain, **chip).simulate().latency_ns or 0.0
    folder = saved(with_stages(chain, tmp_path, latency_ns / 2.5, method="slices", **chip), tmp_path / "out")
    assert len({delay["passes"] for delay in delays_of(folder)}) == 1
    assert validate(folder, samples=6).verdict == "pass"


@pytest.mark.parametrize("more", [-1, 1])
def test_an_output_of_the_sample_beside_it_fails(model: Any, tmp_path: Path, more: int):
    folder = saved(with_stages(model, tmp_path, 120_000.0), tmp_path / "out")
    resident = json.loads((folder / "resident.json").read_text())
    resident["delays"][0]["passes"] += more
    rewrite(folder, "resident.json", resident)
    assert validate(folder, samples=4, check_hashes=False).verdict == "mismatch"


def test_a_copy_short_fails(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A reader that takes the newest value, and not the copy of the older one, works on the wrong sample."""

    def newest(_: Any, value: Any, core: Any, turn: Any) -> Any:
        return value

    monkeypatch.setattr(sample_versions.SampleVersions, "read", newest)
    folder = saved(with_stages(model, tmp_path, 120_000.0), tmp_path / "out")
    assert validate(folder, samples=4).verdict == "mismatch"


def test_the_command_works_as_the_option_says(tmp_path: Path):
    """The option shortens the interval of a small quantised network, or leaves the program as it is."""
    before, after = (raptor.compile(small_int8(), overlap=n, **CHIP) for n in (1, 4))
    ns = [program.simulate(mode="throughput").interval_ns or 0 for program in (before, after)]
    assert ns[1] < 0.95 * ns[0]
    folder = saved(after, tmp_path / "out")
    assert delays_of(folder)
    assert validate(folder, samples=7).verdict == "pass"


def test_without_init_an_integer_program_is_refused(tmp_path: Path):
    program = raptor.compile(small_int8(), overlap=4, **CHIP)
    loaded = load_output(saved(program, tmp_path / "out"))
    assert loaded.resident is not None
    nothing = {"init": tuple(np.zeros(0, isa.RECORD) for _ in loaded.streams)}
    without = replace(loaded, resident=replace(loaded.resident, auxiliary=nothing))
    inputs = {place.name: np.zeros(place.shape, np.float32) for place in loaded.memory.inputs}
    run_program(loaded, inputs)
    with pytest.raises(ProgramError, match="written"):
        run_program(without, inputs)


def test_a_stage_that_is_wrong_is_refused(model: Any):
    """An earlier stage of a reader, a later one of a reader of inputs, and different stages of an output."""
    done = passes(model, mapping="rows", cores=30)
    problem = ScheduleProblem.from_graph(done.arch, done.on_chip, range(len(done.on_chip.cores)))
    order, stage = named_stages(
        problem.sample_work(), StepOrder(600.0, 0), problem.stage_rules(), StageOrder(120_000.0, StepOrder(0.0, 0))
    )
    schedule = Schedule(done.on_chip, problem.fetched, tuple(order.tolist()), tuple(stage.tolist()))
    verify_schedule(schedule, done.on_chip)
    rules = problem.stage_rules()
    last = int(np.flatnonzero(stage == stage.max())[-1])
    for step, value in ((int(rules.first[0]), 1), (int(rules.member[-1]), 0), (last, -1), (last, int(stage.max()) + 1)):
        wrong = stage.copy()
        wrong[step] = value
        with pytest.raises(VerifyError):
            verify_schedule(replace(schedule, stages=tuple(wrong.tolist())), done.on_chip)


@QUICK
@given(
    random_models(), st.integers(2, 30), st.floats(0.1, 1.0), st.integers(0, 2), st.sampled_from(["modulo", "slices"])
)
def test_random_graphs_in_random_stages(model: Any, cores: int, share: float, sample: int, method: str):
    """The interval is a share of the latency; a long one gives one stage, as without the option."""
    chip: dict[str, Any] = {"xbar": (16, 16), "xbars_per_core": 64, "cores": cores}
    with TemporaryDirectory() as name:
        latency_ns = raptor.compile(model, **chip).simulate().latency_ns or 0.0
        try:
            program = with_stages(model, Path(name), share * latency_ns, sample, method, **chip)
        except UserError:
            return  # not by line
        assert validate(saved(program, Path(name) / "out"), samples=4).verdict == "pass"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mapping": "raptor"}, "only for mappings in which lines of images stream"),
        ({"optimize": "latency"}, "each stage makes the latency longer"),
        ({"rounds": True}, "not with"),
        ({"overlap": 9}, "expected"),
        ({"overlap": 0}, "expected"),
    ],
)
def test_it_is_refused_where_it_has_no_effect(model: Any, options: dict[str, Any], why: str):
    chosen: dict[str, Any] = {"overlap": 2, **CHIP, **options}
    with pytest.raises(UserError, match=why):
        raptor.compile(model, **chosen)


@pytest.mark.parametrize("objective", [None, "throughput"])
def test_stages_are_chosen_by_simulated_times(objective: Any, monkeypatch: pytest.MonkeyPatch):
    """The program is the best of those that are simulated, and the one without stages is the first of them."""
    figures, options = list[float](), dict[str, Any](cores=50)
    options |= {"optimize": objective, "effort": 1} if objective else {}
    figure_of, model = stage_search.simulate_figure, models.build("lenet5", seed=0)

    def record(*given: Any) -> tuple[float, int]:
        found = figure_of(*given)
        figures.append(found[0])
        return found

    monkeypatch.setattr(stage_search, "simulate_figure", record)
    programs = [raptor.compile(model, overlap=most, **options) for most in (1, 4)]
    before_ns, after_ns = (program.simulate(mode="throughput").interval_ns or 0.0 for program in programs)
    assert 2 < len(figures) <= 1 + stage_search.MOST_SIMULATED
    assert after_ns == pytest.approx(min(figures), rel=0.01)
    assert before_ns == pytest.approx(figures[0], rel=0.01)
    assert min(figures) < WORTH_STAGES * figures[0]


def test_nothing_is_simulated_where_no_stages_can_gain(monkeypatch: pytest.MonkeyPatch):
    """If the port, or a core, works nearly all the time, stages are not tried."""
    monkeypatch.setattr(stage_search, "simulate_figure", Mock(side_effect=AssertionError))
    monkeypatch.setattr(sample_stages, "modulo_stages", Mock(side_effect=AssertionError))
    chain = models.build("lenet5", seed=0)
    raptor.compile(chain, cores=1, xbars_per_core=2000, overlap=4)


def test_a_search_for_throughput_overlaps_samples(tmp_path: Path):
    """Stages are tried without the option, and the report says that outputs are late; one sample at once has none."""
    model, search = models.build("lenet5", seed=0), dict[str, Any](cores=50, optimize="throughput", effort=1)
    programs = [raptor.compile(model, overlap=most, **search) for most in (None, 1)]
    after_ns, before_ns = (program.simulate(mode="throughput").interval_ns or 0.0 for program in programs)
    assert after_ns < WORTH_STAGES * before_ns
    folders = [saved(program, tmp_path / name) for program, name in zip(programs, "ab", strict=True)]
    (delay,) = delays_of(folders[0])
    told = f"samples overlap: outputs come passes after their sample began (fc3_output by {delay['passes']}; "
    assert [told in "".join(program.report.warnings) for program in programs] == [True, False]
    assert not (folders[1] / "resident.json").exists()
    assert validate(folders[0], samples=6).verdict == "pass"


def test_a_search_for_throughput_of_a_program_that_cannot_overlap():
    """Without the option, samples stay apart where the option would be refused."""
    search: dict[str, Any] = {"cores": 30, "optimize": "throughput", "effort": 1}
    programs = [raptor.compile(small_int8(), requant="short", **search)]
    programs += [raptor.compile(recurrent_step("GRU"), states="auto", **search)]
    chain = models.build("lenet5", seed=0)
    programs += [raptor.compile(chain, optimize=goal, effort=1, **CHIP) for goal in ("latency", "energy")]
    assert not [line for program in programs for line in program.report.warnings if "overlap" in line]


def test_stages_that_gain_nothing_are_left_out(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If each program with stages is worse, or needs more local memory than there is, the bytes are as without."""
    before = saved(raptor.compile(model, **CHIP), tmp_path / "before")
    for name, worse in (("slower", (1.0, 0)), ("larger", (-1.0, 1))):
        figures = Mock(side_effect=[(0.0, 0)] + [worse] * stage_search.MOST_SIMULATED)
        monkeypatch.setattr(stage_search, "simulate_figure", figures)
        after = saved(raptor.compile(model, overlap=4, **CHIP), tmp_path / name)
        streams = sorted(p.name for p in before.glob("core_*"))
        assert all((before / n).read_bytes() == (after / n).read_bytes() for n in streams)


def test_stages_in_a_file_are_refused_where_the_option_is(tmp_path: Path):
    with pytest.raises(UserError, match=r"decision\.flow\.stages: not for sections of floats or short multipliers"):
        with_stages(small_int8(), tmp_path, 20_000.0, requant="short")


def test_intermediate_tensors_are_refused(model: Any, tmp_path: Path):
    folder = saved(with_stages(model, tmp_path, 150_000.0), tmp_path / "out")
    with pytest.raises(UserError, match="intermediate tensors are of several samples"):
        validate(folder, samples=1, layers=True)


def test_explain_tells_when_it_may_help(model: Any, tmp_path: Path):
    """Only where cores wait; the gain that it names is not reached, and not exceeded."""
    advice = [explain(saved(raptor.compile(model, overlap=n, **CHIP), tmp_path / f"{n}")).advice for n in (1, 4)]
    told = [line for line in advice[0] if "overlap=4" in line]
    assert len(told) == 1
    assert not [line for line in advice[1] if "overlap" in line]
    most = float(told[0].split(" by ")[1].split("%")[0]) / 100
    before_ns, after_ns = (explain(tmp_path / f"{n}").interval_ns for n in (1, 4))
    assert (1 - most - 0.01) * before_ns <= after_ns < before_ns


def test_equal_bytes_without_the_option(model: Any, tmp_path: Path):
    first, second = (raptor.compile(model, **CHIP, **options) for options in EQUAL)
    folders = [saved(program, tmp_path / name) for program, name in ((first, "a"), (second, "b"))]
    names = sorted(p.name for p in folders[0].glob("core_*"))
    assert names
    assert not (folders[0] / "resident.json").exists()
    assert all((folders[0] / n).read_bytes() == (folders[1] / n).read_bytes() for n in names)
