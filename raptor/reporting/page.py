"""The report as one self-contained HTML file: styles, plotly and data are embedded."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson

from raptor.reporting import (
    accuracies,
    chip_figures,
    rounds,
    summary,
    tables,
    text,
    time,
)
from raptor.reporting.facts import Facts
from raptor.reporting.figure import Figure
from validator.checks import RULES
from validator.checks.findings_text import summary as count_findings
from validator.simulate.simulation_report import time_text


def report_page(facts: Facts) -> str:
    """Returns the HTML page of `raptor report`."""
    profile = facts.profile
    figures = _figures(facts)
    return render(
        "report.html",
        figures,
        title=facts.name,
        facts=facts,
        profile=profile,
        head=summary.head(facts),
        main=summary.figures(facts),
        slowest=_slowest(facts),
        bin=_time(profile.timeline.bin_ns) if profile.timeline else "",
        not_modelled=summary.not_modelled(profile),
        rounds=rounds.round_table(profile.reloading, facts.segments) if profile.reloading and facts.segments else None,
        segments=tables.segment_table(facts.segments) if facts.segments else None,
        on_host=tables.host_table(facts.segments) if facts.segments else None,
        accuracy=accuracies.device_table(facts.accuracies) if facts.accuracies else None,
        accuracy_layers=accuracies.layer_table(facts) if facts.accuracies else None,
        sweeps=[f.id for f in figures if f.id.startswith("accuracy-")],
        layers=tables.layer_table(facts),
        flows=tables.flow_table(facts),
        most_flows=tables.MOST_FLOWS,
        findings=tables.finding_table(facts),
        counted=count_findings(profile.findings),
        rules=len(RULES),
    )


def _slowest(facts: Facts) -> str:
    most = summary.slowest(facts)
    if most is None:
        return ""
    layer, part = most
    noun = "layer" if facts.profile.parts_are == "node" else "kind of instruction"
    assert layer.counted is not None
    ns = _time(layer.counted.critical_ns or 0.0)
    return f"Slowest {noun}: {layer.name}, {ns} of the critical path ({text.share(part)})."


def _time(ns: float) -> str:
    return time_text(float(f"{ns:.4g}"))


def _figures(facts: Facts) -> list[Figure]:
    profile, parts = facts.profile, [layer.counted for layer in facts.layers if layer.counted]
    figures = [
        chip_figures.mesh(profile),
        chip_figures.traffic(profile),
        chip_figures.mix_by_part(parts),
        chip_figures.mix_by_core(profile),
    ]
    for number, one in enumerate(facts.accuracies):
        if one.sweep:
            figures.append(accuracies.sweep(one, f"accuracy-{number}"))
    if profile.reloading is not None:
        figures.append(rounds.line(profile.reloading))
    if profile.timeline is not None:
        figures += [time.chip_load(profile, profile.timeline), time.timeline(profile, profile.timeline)]
    if profile.local_memory is not None:
        figures.append(time.memory(profile, profile.local_memory))
    if profile.crossbars is not None and len(profile.crossbars.fill):
        figures.append(chip_figures.fills(profile.crossbars))
        if len(profile.crossbars.fill) <= chip_figures.MOST_CROSSBARS:
            figures.append(chip_figures.crossbars(profile, profile.crossbars))
    return figures


def render(template: str, figures: Sequence[Figure], **values: Any) -> str:
    """Renders an HTML template of this package with styles, script and figures; names are escaped everywhere."""
    # imported here, because only pages need it and the import is slow
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("raptor.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        css=_file("page.css"),
        js=_file("page.js"),
        plotly=_plotly() if figures else "",
        data=script_json({f.id: f.as_json() for f in figures}),
        drawn={f.id: f for f in figures},
        **values,
    )


def _file(name: str) -> str:
    return resources.files("raptor.reporting").joinpath(name).read_text("utf-8")


def _plotly() -> str:
    """Returns plotly.js from the Python package, without importing the package."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def script_json(value: object) -> str:
    """Returns JSON that cannot close the surrounding script element."""
    return orjson.dumps(value).decode().replace("<", "\\u003c")
