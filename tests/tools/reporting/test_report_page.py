"""The pages of `raptor report` and `raptor compare`, in a real browser."""

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from onnx import helper

import models
import raptor
from raptor.tools.reporting.program_comparison import render_comparison
from raptor.tools.reporting.program_facts import gather_facts
from raptor.tools.reporting.report_page import render_report
from raptor.tools.reporting.report_tables import FOLDED_ROWS
from tests.browser import Browser, browser
from tests.chromium import Chromium
from tests.tiny_models import make_model, random
from tests.tools.reporting.measured import measured
from tests.validator.simulate.programs import SETBW, recv, send, write

SECTIONS = ["summary", "layers", "chip", "time", "power", "memories", "fill", "instructions", "messages", "warnings"]
FIGURES = [
    "mesh",
    "traffic",
    "mix-parts",
    "mix-cores",
    "load",
    "power-parts",
    "power-cores",
    "timeline",
    "memory",
    "fills",
    "crossbars",
]
CHIP = {"xbar": 32, "cores": 60}


@pytest.fixture(scope="module")
def chromium(chromium_paths: Chromium) -> Generator[Browser]:
    with browser(chromium_paths) as running:
        yield running


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model = models.build("resnet18", seed=0, width=0.125, image_size=32)
    folder = tmp_path_factory.mktemp("outs")
    return {m: raptor.compile(model, mapping=m, **CHIP).save(folder / m) for m in ("raptor", "rows")}


@pytest.fixture(scope="module")
def pages(outs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in (*outs, "compare")}
    for name, out in outs.items():
        accuracies = [measured("resnet18")] if name == "raptor" else []
        found[name].write_text(render_report(gather_facts(out, validate=True, accuracies=accuracies)))
    found["compare"].write_text(render_comparison([gather_facts(out) for out in outs.values()]))
    return found


@pytest.mark.parametrize(("mapping", "accuracy"), [("raptor", True), ("rows", False)])
def test_everything_is_drawn(chromium: Browser, pages: dict[str, Path], mapping: str, accuracy: bool):
    chromium.open(pages[mapping])
    assert chromium.errors() == []
    assert [s.get_attribute("id") for s in chromium.all("section")] == [
        *SECTIONS[:1],
        *["accuracy"] * accuracy,
        *SECTIONS[1:],
    ]
    drawn = chromium.run("return [...document.querySelectorAll('.js-plotly-plot')].map(p => p.id)")
    assert sorted(drawn) == sorted([*FIGURES, *["accuracy-0"] * accuracy])
    assert chromium.run("return [...document.querySelectorAll('.main-svg')].every(s => s.clientWidth > 200)")
    assert "PASS" in chromium.one("#summary").text
    assert re.search(r"Slowest layer: \S+, [\d.]+ \w+ of the critical path", chromium.one("#summary").text)


def test_nothing_is_loaded_from_elsewhere(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    assert chromium.run("return performance.getEntriesByType('resource').map(r => r.name)") == []
    text = pages["rows"].read_text()
    assert not re.search(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//", text)


def test_a_click_on_a_heading_sorts(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    heading = next(b for b in chromium.all("#table-layers th button") if b.text.strip() == "time")

    def times() -> list[float]:
        cells = "[...document.querySelectorAll('#table-layers tbody tr')].map(r => +r.cells[2].dataset.value)"
        return chromium.run(f"return {cells}")

    before = times()
    chromium.click(heading)
    assert times() == sorted(before, reverse=True) != before
    assert heading.find_element("xpath", "..").get_attribute("aria-sort") == "descending"
    slowest = chromium.one("#table-layers tbody td").text
    assert f"Slowest layer: {slowest}," in chromium.one("#summary").text
    chromium.click(heading)
    assert times() == sorted(before)
    chromium.click(chromium.one("#table-layers th button"))
    names = [e.text for e in chromium.all("#table-layers tbody td:first-child")]
    assert names == sorted(names)
    assert len(names) == len(before)


def test_the_mouse_shows_what_is_there(chromium: Browser, pages: dict[str, Path], outs: dict[str, Path]):
    chromium.open(pages["rows"])
    cores = gather_facts(outs["rows"]).profile.cores
    first = next(core for core in cores if core.xbars)
    row, col = divmod(first.core, 8)
    shown = chromium.hover("mesh", (col + 0.5) / 8, (row + 0.5) / 8)
    assert f"core {first.core}: {first.xbars} crossbars" in shown
    assert first.parts[0][0] in shown
    shown = chromium.hover("timeline", 0.02, 0.5)  # the first row of a tall figure is outside of the window
    named = re.match(r"core (\d+),", shown)
    assert named is not None
    assert abs(int(named[1]) - len(cores) // 2) <= 1
    middle = next(core for core in cores if core.core == int(named[1]))
    assert re.search(rf"core {middle.core}, [\d.]+ \w+.*about \d+\s%", shown, re.DOTALL)
    assert any(name in shown for name, _ in middle.parts)
    assert re.search(r"core \d+, .*: [\d.]+\s\w*B", chromium.hover("memory", 0.02, 0.5), re.DOTALL)
    shown = chromium.hover("crossbars", 0.01, 0.01)
    assert re.search(rf"core {first.core}, crossbar 0: [\d.]+\s% full.*{first.parts[0][0]}", shown, re.DOTALL)
    chromium.open(pages["raptor"])  # most of its cores are idle
    working = {core.core for core in gather_facts(outs["raptor"]).profile.cores if core.parts}
    row, col = divmod(next(i for i in range(CHIP["cores"]) if i not in working), 8)
    assert "no work" in chromium.hover("mesh", (col + 0.5) / 8, (row + 0.5) / 8)


def test_a_button_changes_the_colours(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["raptor"])
    visible = "return document.getElementById('mesh').data.map(t => t.visible)"
    titles: list[str] = []
    for k, name in enumerate(("crossbars", "busy time", "waiting", "memory")):
        button = chromium.all("#mesh .updatemenu-button")[k]
        assert button.text == name
        chromium.run("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", button)
        assert chromium.run(visible) == [i == k for i in range(4)]
        titles.append(chromium.one("#mesh .colorbar .cbtitle, #mesh [class^=cb]").text)
    assert len(set(titles)) == 4
    assert chromium.errors() == []


def test_light_and_dark(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    colours = """
        const tick = document.querySelector('#mix-cores .xtick text');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
                getComputedStyle(tick).fill]"""
    chromium.prefer("light")
    back, text, tick = chromium.run(colours)
    assert (back, tick) == ("rgb(255, 255, 255)", text)
    chromium.prefer("dark")
    dark_back, dark_text, dark_tick = chromium.run(colours)
    chromium.prefer("light")
    assert dark_back != back
    assert dark_text == dark_tick != text


@pytest.mark.parametrize("width", [1280, 2560])
def test_the_page_fits_its_window(chromium: Browser, pages: dict[str, Path], width: int):
    chromium.driver.set_window_size(width, 900)
    for page in ("rows", "compare"):
        chromium.open(pages[page])
        assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    chromium.driver.set_window_size(1280, 900)


@pytest.fixture
def telephone(chromium: Browser) -> Generator[Browser]:
    """A window of 400 pixels, narrower than a window manager allows."""
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield chromium
    chromium.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_telephone_shows_everything(telephone: Browser, pages: dict[str, Path]):
    """A figure does not overlap its tools, and the plot has most of the width."""
    telephone.open(pages["rows"])
    assert telephone.errors() == []
    assert telephone.run("return document.documentElement.scrollWidth <= innerWidth")
    over = """
        const box = e => e.getBoundingClientRect(), found = [];
        for (const plot of document.querySelectorAll('.js-plotly-plot')) {
          const tools = box(plot.querySelector('.modebar-group')), inside = box(plot);
          for (const e of plot.querySelectorAll('.updatemenu-header-group, .updatemenu-button, .legend .traces')) {
            const b = box(e);
            if (!b.width) continue;
            const beside = b.right <= tools.left || b.left >= tools.right;
            const apart = beside || b.bottom <= tools.top || b.top >= tools.bottom;
            if (!apart || b.right > inside.right + 1) found.push(plot.id);
          }
        }
        return found"""
    assert telephone.run(over) == []
    widths = (
        "return [...document.querySelectorAll('.js-plotly-plot .nsewdrag')].map(e => e.getBoundingClientRect().width)"
    )
    assert min(telephone.run(widths)) > 0.4 * 400
    timeline = telephone.run("return document.querySelector('#timeline .nsewdrag').getBoundingClientRect().width")
    assert timeline > 0.7 * 400
    assert telephone.run("return document.querySelector('#table-layers').parentElement.classList.contains('more')")


def test_the_layers_fit_and_have_more_columns(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    fits = "const s = document.querySelector('#table-layers').parentElement; return s.scrollWidth <= s.clientWidth"
    heads = (
        "return [...document.querySelectorAll('#table-layers th')].filter(h => h.offsetWidth).map(h => h.textContent)"
    )
    assert chromium.run(fits)
    assert "unfolding" not in chromium.run(heads)
    chromium.click(chromium.one("button.turn[data-turns=brief]"))
    assert {"unfolding", "in", "out", "Σ busy"} <= set(chromium.run(heads))
    chromium.click(chromium.one("button.turn[data-turns=brief]"))
    assert chromium.run(fits)


def test_flows_are_folded(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    rows = "return [...document.querySelectorAll('#table-flows tbody tr')].filter(r => r.offsetHeight).length"
    every = chromium.run("return document.querySelectorAll('#table-flows tbody tr').length")
    assert chromium.run(rows) == FOLDED_ROWS < every
    button = chromium.one("button.turn[data-turns=folded]")
    assert button.text == f"Show all {every}"
    chromium.click(button)
    assert chromium.run(rows) == every
    chromium.click(button)
    assert chromium.run(rows) == FOLDED_ROWS


def test_figures_can_be_saved_as_svg(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["rows"])
    chromium.run("Plotly.downloadImage = (plot, options) => { window.saved = options; }")
    chromium.click(chromium.one("#timeline .modebar-btn[data-title='Download as SVG']"))
    saved = chromium.run("return window.saved")
    assert (saved["format"], saved["filename"]) == ("svg", "timeline")
    image = chromium.run("return Plotly.toImage(document.getElementById('timeline'), {format: 'svg'})")
    assert image.startswith("data:image/svg+xml")
    assert chromium.errors() == []


def test_compare_is_drawn(chromium: Browser, pages: dict[str, Path]):
    chromium.open(pages["compare"])
    assert chromium.errors() == []
    assert [s.get_attribute("id") for s in chromium.all("section")] == ["figures-section", "outputs", "layers"]
    assert len(chromium.all("#layers-time .main-svg")) > 0
    assert re.search(r"latency .+ x0\.\d+", chromium.one("#table-figures-compared").text)


def test_names_are_only_names(chromium: Browser, tmp_path: Path):
    """A model whose author tries to write into the page."""
    name = "</script><img src=x onerror=alert(1)><b>&lt;"
    node = helper.make_node("Relu", ["x"], ["y"], name=name)
    model = make_model([node], {"x": (1, 2, 3, 3)}, ["y"], {"w": random(1)})
    page = tmp_path / "page.html"
    page.write_text(render_report(gather_facts(raptor.compile(model, cores=1).save(tmp_path / "out"))))
    chromium.open(page)
    assert chromium.errors() == []
    assert chromium.all("img") == []
    assert chromium.one("#table-layers tbody td").text == name
    assert name in chromium.hover("mesh", 0.5, 0.5)


def test_what_is_not_known_is_said(chromium: Browser, outs: dict[str, Path], tmp_path: Path):
    """Streams and config alone, and a program that does not end."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in [outs["rows"] / "config.json", *outs["rows"].glob("core_*.json")]:
        (bare / path.name).write_bytes(path.read_bytes())
    stuck = write(tmp_path / "stuck", [SETBW, recv(1, 64), send(1, 64)], [SETBW, recv(0, 64), send(0, 64)])
    for out, reason in ((bare, "no architecture"), (stuck, "does not end")):
        page = tmp_path / f"{out.name}.html"
        page.write_text(render_report(gather_facts(out)))
        chromium.open(page)
        assert chromium.errors() == []
        notice = chromium.one(".notice").text
        assert reason in notice
        assert "steps.json" in notice
        assert "report.json" in notice
        assert f"Not known: {'no arch' if out is bare else 'the program'}" in chromium.one("#time").text
        assert "Kinds of instruction" in chromium.one("#layers h2").text
        assert "mvmul" in chromium.one("#table-layers").text or out is stuck
