"""The study file, and messages about a wrong one."""

import re
from pathlib import Path

import pytest

from raptor.common.errors import UserError
from raptor.tools.explore.study.metrics import METRICS, MetricLimit, parse_limit
from raptor.tools.explore.study.search_space import enumerate_grid, format_command, merge_options
from raptor.tools.explore.study.study_file import read_study
from raptor.tools.explore.study.study_template import render_template
from raptor.tools.explore.study_driver import run_study
from tests.tools.explore.small import TRIALS, model, small, write


def test_a_study(tmp_path: Path):
    space = "xbar = [[16, 32], 64]\nfields.rob_size = [1, 4]\nfields = { matrix_config.adc_count = 2 }\n"
    with pytest.raises(UserError, match="not TOML"):  # TOML has one table of a name
        small(tmp_path, space=f"\n{space}")
    study = small(
        tmp_path, space='\nxbar = [[16, 32], 64]\nfields.matrix_config.adc_count = [1, 2]\n"knobs.share" = 0.5\n'
    )
    assert [(p.name, p.values) for p in study.space] == [
        ("xbar", ("16x32", 64)),
        ("fields.matrix_config.adc_count", (1, 2)),
        ("knobs.share", (0.5,)),
    ]
    assert study.storage == f"sqlite:///{tmp_path}/small.db"
    assert len(list(enumerate_grid(study.space))) == 4


def test_ranges(tmp_path: Path):
    space = "\ncores = {min = 2, max = 9, step = 3}\nknobs.share = {min = 0.2, max = 1.0, step = 0.2}\n"
    cores, share = small(tmp_path, space=space).space
    assert list(cores.grid_values) == [2, 5, 8]
    assert list(share.grid_values) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert cores.is_integer
    assert not share.is_integer


@pytest.mark.parametrize("name", ["a b", "v1.2", "größe (2)", "x" * 100, "7-8_9+"])
def test_names_of_studies(name: str, tmp_path: Path):
    """A study of any such name runs in its own database (public reports, B16)."""
    path = write(tmp_path)
    path.write_text(
        path.read_text().replace('name = "small"', f'name = "{name}"').replace(TRIALS, "trials = 2\nbatch = 2")
    )
    study = read_study(path)
    assert study.storage == f"sqlite:///{tmp_path}/{name}.db"
    assert run_study(study)
    assert (tmp_path / f"{name}.db").is_file()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a/b", "a name begins with a letter or digit"),
        ("../b", "a name begins with a letter or digit"),
        ("..", "a name begins with"),
        ("", "a name begins with"),
        (" a", "a name begins with"),
        ("a?b", "a name begins with"),
        ("a\\\\b", "a name begins with"),
        ("a\\nb", "a name begins with"),
        ("x" * 101, "has 101 bytes, a name has at most 100"),
        ("ö" * 60, "has 120 bytes, a name has at most 100"),
    ],
)
def test_names_that_no_study_has(name: str, told: str, tmp_path: Path):
    path = write(tmp_path)
    path.write_text(path.read_text().replace('name = "small"', f'name = "{name}"'))
    with pytest.raises(UserError, match=rf"study\.name: .*{re.escape(told)}"):
        read_study(path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"study": "trial = 3"}, "study: no such field: 'trial'; did you mean trials"),
        ({"study": "trials = 0"}, "study.trials: Input should be greater than or equal to 1"),
        ({"study": 'sampler = "best"'}, "study.sampler: Input should be 'grid', 'random', 'nsga2' or 'tpe'"),
        ({"study": 'storage = "mysql://x"'}, "study.storage: String should match"),
        ({"space": "\nxbar = [0]\n"}, "space: xbar=0: expected a size"),
        ({"space": '\nmapping = ["rws"]\n'}, "space: mapping='rws': expected a file, or one of: rows"),
        ({"space": "\ncors = [1]\n"}, "space: cors: no such parameter; expected one of: xbar, cores"),
        ({"space": "\ncores = [1, 1]\n"}, "space.cores: expected some different values"),
        ({"space": "\ncores = [1.5]\n"}, "cores=1.5: expected a whole number"),
        ({"space": "\ncores = {min = 4, max = 2}\n"}, "min 4 is above max 2"),
        ({"space": "\ncores = {min = 1, max = 2, stp = 1}\n"}, "no such field: 'stp'; did you mean step"),
        ({"space": "\nfields.period = [1]\n"}, "several fields have this name"),
        ({"space": "\nknobs.shar = [1]\n"}, "knobs='shar': expected numbers by name"),
        ({"space": "\nknobs.share = {min = 0.1, max = 0.9}\n", "study": 'sampler = "grid"'}, "a grid needs a step"),
        ({"space": "\nxbars_per_core = [4]\n"}, "also among the options that all points share"),
        ({"study": 'mapping = "fixed"'}, "study.mapping 'fixed'"),
        (
            {"rest": '[constraints]\nlatncy = "<= 5"'},
            "constraints: no such figure: 'latncy'; expected some of: latency_ns",
        ),
        (
            {"rest": '[constraints]\nlatency_ns = "< 5"'},
            "constraints.latency_ns: '< 5': expected a limit such as '<= 5 ms'",
        ),
        ({"rest": '[constraints]\nlatency_ns = "<= 5 kB"'}, "no such unit here; expected one of: ns, us, ms, s"),
        ({"rest": '[constraints]\ntop1 = ">= 0.9"'}, "top1: needs data: a table 'accuracy' with a key 'data'"),
        ({"rest": '[accuracy]\ndata = ["m0.onnx"]'}, "accuracy: no objective and no limit is a figure of accuracy"),
        ({"space": "\ncrossbar.adc_bits = [4]\n"}, "space.crossbar.adc_bits: needs accuracy.crossbar 'sliced'"),
        ({"space": "\ncrossbar.adc_bit = [4]\n"}, "adc_bit: no setting of a crossbar; did you mean adc_bits?"),
        ({"space": '\ndevice = ["no"]\n'}, "space: device no: no such file"),
        ({"space": "\nrounds = [1]\n"}, "space: rounds=1: expected True or False"),
        ({"space": '\nlink = ["x"]\n'}, "space: link='x': expected board-ht or package-ucie"),
        ({"rest": "[run]\nworkers = 0"}, "run.workers: Input should be greater"),
    ],
)
def test_wrong_files(tmp_path: Path, parts: dict[str, str], message: str):
    path = write(tmp_path, **parts)
    with pytest.raises(UserError) as raised:
        read_study(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path):
    path = write(tmp_path)
    with pytest.raises(UserError, match="No such file"):
        read_study(tmp_path / "other.toml")
    (tmp_path / "m0.onnx").unlink()
    with pytest.raises(UserError, match=r"study\.models: m0\.onnx: No such file"):
        read_study(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="not TOML"):
        read_study(path)
    path.write_text("#" * 2**21)
    with pytest.raises(UserError, match="more than the 1048576 bytes"):
        read_study(path)


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("latency_ns", "<= 5 ms", MetricLimit("latency_ns", True, 5e6)),
        ("local_bytes", "<=64KiB", MetricLimit("local_bytes", True, 65536.0)),
        ("energy_pj", ">= 1.5e-3 mJ", MetricLimit("energy_pj", False, 1.5e6)),
        ("xbars", "<= 100", MetricLimit("xbars", True, 100.0)),
    ],
)
def test_limits(name: str, text: str, limit: MetricLimit):
    assert parse_limit(name, text) == limit
    assert limit.excess(limit.bound) == 0
    assert (limit.excess(2 * limit.bound) > 0) == limit.is_upper


def test_the_template_is_a_study(tmp_path: Path):
    path = tmp_path / "study.toml"
    path.write_text(render_template([model(tmp_path / "a.onnx"), model(tmp_path / "b.onnx")]))
    study = read_study(path)
    assert [m.name for m in study.models] == [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]
    assert all(name in path.read_text() for name in METRICS)


def test_options_and_command():
    common = {"arch": "isaac", "dims": {"H": 4}, "shapes": {"x": [1, 2]}, "host": True, "fields": {"rob_size": 2}}
    options = merge_options(common, {"xbar": "16x32", "knobs.share": 0.5, "fields.adc_count": 3, "cell_bits": 2})
    assert options["fields"] == {"rob_size": 2, "adc_count": 3}
    assert common["fields"] == {"rob_size": 2}
    assert format_command("a b.onnx", options) == (
        "raptor compile 'a b.onnx' --arch isaac --dim H=4 --shape x=1,2 --host --field rob_size=2 --field adc_count=3 "
        "--knob share=0.5 --xbar 16x32 --cell-bits 2"
    )
