"""The report as one self-contained HTML file: styles, plotly and data are embedded."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson

from raptor.tools.reporting import (
    accuracy_section,
    chip_figures,
    key_figures,
    number_texts,
    power_figures,
    report_tables,
    rounds_section,
    time_figures,
)
from raptor.tools.reporting.plot_parts import PlotFigure
from raptor.tools.reporting.program_facts import ProgramFacts
from validator.checks import RULES
from validator.checks.findings_output import summarise_findings as count_findings
from validator.simulate.simulation_report import time_text, uncounted_text


def render_report(facts: ProgramFacts) -> str:
    """Returns the HTML page of `raptor report`."""
    profile = facts.profile
    figures = _figures(facts)
    return render_page(
        "report.html",
        figures,
        title=facts.name,
        facts=facts,
        profile=profile,
        head=key_figures.list_head_figures(facts),
        main=key_figures.list_key_figures(facts),
        slowest=_slowest(facts),
        bin=_time(profile.timeline.bin_ns) if profile.timeline else "",
        not_modelled=key_figures.list_unmodelled(profile),
        rounds=rounds_section.make_round_table(profile.reloading, facts.segments)
        if profile.reloading and facts.segments
        else None,
        segments=report_tables.make_segment_table(facts.segments) if facts.segments else None,
        on_host=report_tables.make_host_table(facts.segments) if facts.segments else None,
        accuracy=accuracy_section.make_accuracy_table(facts.accuracies) if facts.accuracies else None,
        accuracy_layers=accuracy_section.make_noise_table(facts) if facts.accuracies else None,
        sweeps=[f.id for f in figures if f.id.startswith("accuracy-")],
        layers=report_tables.make_layer_table(facts),
        uncounted=uncounted_text(profile.power.uncounted) if profile.power else "",
        links=report_tables.make_link_table(profile.power.mesh) if profile.power and profile.power.mesh else None,
        flows=report_tables.make_flow_table(facts),
        most_flows=report_tables.MAX_FLOWS,
        findings=report_tables.make_finding_table(facts),
        counted=count_findings(profile.findings),
        rules=len(RULES),
    )


def _slowest(facts: ProgramFacts) -> str:
    most = key_figures.find_slowest_layer(facts)
    if most is None:
        return ""
    layer, part = most
    noun = "layer" if facts.profile.part_kind == "node" else "kind of instruction"
    assert layer.counted is not None
    ns = _time(layer.counted.critical_ns or 0.0)
    return f"Slowest {noun}: {layer.name}, {ns} of the critical path ({number_texts.format_share(part)})."


def _time(ns: float) -> str:
    return time_text(float(f"{ns:.4g}"))


def _figures(facts: ProgramFacts) -> list[PlotFigure]:
    profile, parts = facts.profile, [layer.counted for layer in facts.layers if layer.counted]
    figures = [
        chip_figures.draw_mesh(profile),
        chip_figures.draw_traffic(profile),
        chip_figures.draw_mix_by_part(parts),
        chip_figures.draw_mix_by_core(profile),
    ]
    for number, one in enumerate(facts.accuracies):
        if one.sweep:
            figures.append(accuracy_section.draw_sweep(one, f"accuracy-{number}"))
    if profile.reloading is not None:
        figures.append(rounds_section.draw_batch(profile.reloading))
    if profile.timeline is not None:
        figures += [
            time_figures.draw_chip_load(profile, profile.timeline),
            time_figures.draw_timeline(profile, profile.timeline),
        ]
    if profile.power is not None:
        figures += [power_figures.draw_power(profile.power), power_figures.draw_core_power(profile.power)]
    if profile.local_memory is not None:
        figures.append(time_figures.draw_memory(profile, profile.local_memory))
    if profile.crossbars is not None and len(profile.crossbars.fill):
        figures.append(chip_figures.draw_utilisation(profile.crossbars))
        if len(profile.crossbars.fill) <= chip_figures.MAX_CROSSBARS:
            figures.append(chip_figures.draw_crossbars(profile, profile.crossbars))
    return figures


def render_page(template: str, figures: Sequence[PlotFigure], **values: Any) -> str:
    """Renders an HTML template of this package with styles, script and figures; names are escaped everywhere."""
    # imported here, because only pages need it and the import is slow
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("raptor.tools.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        css=_file("page.css"),
        js=_file("page.js"),
        plotly=_plotly() if figures else "",
        data=to_script_json({f.id: f.as_json() for f in figures}),
        drawn={f.id: f for f in figures},
        **values,
    )


def _file(name: str) -> str:
    return resources.files("raptor.tools.reporting").joinpath(name).read_text("utf-8")


def _plotly() -> str:
    """Returns plotly.js from the Python package, without importing the package."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def to_script_json(value: object) -> str:
    """Returns JSON that cannot close the surrounding script element."""
    return orjson.dumps(value).decode().replace("<", "\\u003c")
