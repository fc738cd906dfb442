"""Compile a language model with several capacities and print what a token costs: `make bench-decoder bench-gpt2`.

Constants stay on the chip. A step is the latency of the program, for one session. The interval is that of a stream of
steps: tokens of a prompt, or of many sessions. The first token after a prompt of n tokens comes after n - 1 intervals
and a step. Energy is that of the simulator, alone and streamed. The tokens are those of `raptor validate`. A capacity
of 0 stands for a model without caches, which makes the first token alone.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path

from onnx import ModelProto

import raptor
from benchmarks.correctness.gpt2_model import build_gpt2
from benchmarks.programs.interval_limits import format_line
from models.trained import LANGUAGE_MODEL
from validator.load.output_directory import load_output

HEAD = (
    "capacity",
    "step, us",
    "a further token, us",
    "interval, us",
    "first token of {} tokens, ms",
    "tokens/s, one session",
    "many sessions",
    "uJ a token",
    "streamed",
    "cache, kB",
    "crossbars",
    "compile, s",
    "equal tokens",
)


@dataclass(frozen=True, slots=True)
class StepRow:
    """Figures of a program: times in ns, energy of a token in pJ, bytes of the caches of a session."""

    capacity: int
    step_ns: float
    interval_ns: float
    step_pj: float
    streamed_pj: float
    cache_bytes: int
    crossbars: int
    seconds: float
    equal: str

    def format_cells(self, prompt: int, before: "StepRow | None") -> tuple[str, ...]:
        """Returns the cells of a line of the table. `prompt`: tokens before the first new one.

        `before`: the program of the capacity before, from which a step grows with each further token of capacity.
        """
        first = (prompt - 1) * self.interval_ns + self.step_ns
        further_ns = before and (self.step_ns - before.step_ns) / (self.capacity - before.capacity)
        return (
            f"{self.capacity}",
            f"{self.step_ns / 1e3:.1f}",
            "-" if further_ns is None else f"{further_ns / 1e3:.2f}",
            f"{self.interval_ns / 1e3:.1f}",
            f"{first / 1e6:.2f}",
            f"{1e9 / self.step_ns:,.0f}",
            f"{1e9 / self.interval_ns:,.0f}",
            f"{self.step_pj / 1e6:.1f}",
            f"{self.streamed_pj / 1e6:.2f}",
            f"{self.cache_bytes / 1e3:.0f}",
            f"{self.crossbars:,}",
            f"{self.seconds:.1f}",
            self.equal,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capacities", nargs="*", type=int, default=(64, 128, 256))
    parser.add_argument("--model", type=Path, default=LANGUAGE_MODEL, help="a decoder in ONNX")
    parser.add_argument("--gpt2", action="store_true", help="GPT-2 small with random weights instead")
    parser.add_argument("--cores", type=int, default=144, help="cores of the chip")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, help="steps to validate; by default all")
    args = parser.parse_args()
    head = tuple(cell.format(args.prompt) for cell in HEAD)
    print(format_line(head), format_line(("---:",) * len(head)), sep="\n", flush=True)
    model = build_gpt2() if args.gpt2 else args.model
    before: StepRow | None = None
    if not args.gpt2:
        row = measure_first(args.model, args.cores)
        print(format_line(row.format_cells(args.prompt, None)), flush=True)
    for capacity in args.capacities:
        row = measure(model, capacity, args.cores, args.steps)
        print(format_line(row.format_cells(args.prompt, before)), flush=True)
        before = row


def without_caches(model: Path) -> ModelProto:
    """Returns a decoder whose attentions read no cache: the step of the first token."""
    proto = ModelProto.FromString(model.read_bytes())
    states = [v.name for v in proto.graph.input if v.name.startswith("past_key_values.")]
    for values, prefix in ((proto.graph.input, "past_key_values."), (proto.graph.output, "present.")):
        kept = [v for v in values if not v.name.startswith(prefix)]
        del values[:]
        values.extend(kept)
    for node in proto.graph.node:
        if any(name in states for name in node.input):
            node.input[:] = ["" if name in states else name for name in node.input]
            del node.output[1:]
    return proto


def measure_first(model: Path, cores: int) -> StepRow:
    """Compiles a model without caches for one token, and compares the logits of some tokens."""
    begin = time.process_time()
    dims = {"batch": 1, "sequence": 1, "total": 1}
    program = raptor.compile(
        without_caches(model),
        dims=dims,
        constants={"attention_mask": [[1]]},
        arch="bench",
        cores=cores,
        resident_constants=True,
    )
    seconds = time.process_time() - begin
    step, stream, verdict = program.simulate(), program.simulate(mode="throughput"), program.validate(samples=8)
    assert verdict.passed, verdict
    figures = step.latency_ns, stream.interval_ns, step.energy_pj, stream.energy_pj
    step_ns, interval_ns, step_pj, streamed_pj = (figure or 0.0 for figure in figures)
    return StepRow(0, step_ns, interval_ns, step_pj, streamed_pj, 0, program.report.xbars_used, seconds, "logits of 8")


def measure(model: Path | ModelProto, capacity: int, cores: int, steps: int | None) -> StepRow:
    """Compiles a model, simulates one step and a stream of steps, and validates the tokens."""
    begin = time.process_time()
    program = raptor.compile(
        model, states="auto", capacity=capacity, arch="bench", cores=cores, resident_constants=True
    )
    seconds = time.process_time() - begin
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_output(program.save(Path(folder) / "out"))
        cache = sum(prod(state.shape) * loaded.memory.element_bytes for state in loaded.states)
        step, stream = program.simulate(), program.simulate(mode="throughput")
        verdict = program.validate(samples=steps)
    assert verdict.decoding is not None, "compiled with a capacity"
    figures = step.latency_ns, stream.interval_ns, step.energy_pj, stream.energy_pj
    step_ns, interval_ns, step_pj, streamed_pj = (figure or 0.0 for figure in figures)
    return StepRow(
        capacity,
        step_ns,
        interval_ns,
        step_pj,
        streamed_pj,
        cache,
        program.report.xbars_used,
        seconds,
        f"{verdict.decoding.equal} of {verdict.decoding.tokens}",
    )


if __name__ == "__main__":
    main()
