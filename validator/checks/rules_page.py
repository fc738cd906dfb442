"""Generates docs/reference/checks.md from the registry of rules."""

from validator.checks.findings import RuleTopic
from validator.checks.rule_registry import RULES, CheckRule

_HEAD = """# What `raptor check` finds

Written by `make docs-generate` from the rules (`validator/checks`); do not edit.

`raptor check OUT` finds problems that the simulator pimsim-nn (HEAPLab's fork) would accept silently. It reads
programs of RAPTOR or of any other compiler: a directory, or a single file (JSON, JSON.gz, `.pim` streams). Nothing is
simulated. Only sends, receives, syncs and waits are run, which decides exactly whether there is a deadlock. Equal
findings are shown once, at the first place, with their number. `--json FILE` and `--sarif FILE` write them for other
tools.

Exit status: 0 nothing worse than a note, 1 errors or warnings, 2 a program that cannot be read.

- **error**: the simulator refuses, hangs or crashes, or the program is not the one that was meant;
- **warning**: the program runs, but time, energy or rounds are misleading, or real hardware would behave differently;
- **note**: good to know.

Rules on the architecture are used if there is one: `arch.json` beside the streams, or `--arch FILE`.
"""


def render_page() -> str:
    """Returns the whole page."""
    return "\n".join([_HEAD, *_index(), *(_chapter(topic) for topic in RuleTopic)])


def _index() -> list[str]:
    rows = [f"| [`{r.id}`](#{r.id}) | {r.severity} | {r.title} |" for topic in RuleTopic for r in _rules(topic)]
    return ["| rule | severity | what |", "|---|---|---|", *rows, ""]


def _rules(topic: RuleTopic) -> list[CheckRule]:
    return [rule for rule in RULES.values() if rule.topic is topic]


def _chapter(topic: RuleTopic) -> str:
    return "\n".join([f"## {topic}", "", *(_entry(rule) for rule in _rules(topic))])


def _entry(rule: CheckRule) -> str:
    details = (rule.check.__doc__ or "").strip()
    more = f"\n\n{' '.join(details.split())}" if details else ""
    return (
        f"### {rule.id}\n\n{rule.title} ({rule.severity}).{more}\n\n"
        f"- The simulator: {rule.effect}.\n- Change: {rule.advice}.\n"
    )
