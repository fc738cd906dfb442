"""Times and energy of a token, for a program that is one step of a decoder."""

from dataclasses import dataclass
from pathlib import Path

from raptor.common.files import file_access
from raptor.output import files
from raptor.output.decoder_files import DecoderFile

PROMPT = 64
"""Tokens of a prompt, if the cache has room for it and a new token."""


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Figures of a decoder: time to first token in ns, tokens a second, and energy of a token in pJ.

    `session_per_s`: of one session, whose next token depends on the last one, so each takes a step. `stream_per_s`: of
    a prompt or of many sessions, a step each interval. `first_ns`: after a prompt of `prompt` tokens, one interval for
    each but the last, and a step. Both only in throughput mode. `with_uncounted_pj`: with the static power of the
    crossbars in use that the simulator does not count.
    """

    capacity: int
    session_per_s: float
    stream_per_s: float | None
    prompt: int
    first_ns: float | None
    energy_pj: float
    with_uncounted_pj: float | None

    @classmethod
    def from_times(
        cls, program: Path, latency_ns: float, interval_ns: float | None, energy_pj: float, uncounted_pj: float | None
    ) -> "TokenFigures | None":
        """Returns the figures of a program with these times and energies of a step; None if it is no decoder."""
        if not (program / files.DECODER).is_file():
            return None
        capacity = file_access.read_json_file(DecoderFile, program, files.DECODER).capacity
        prompt = max(1, min(PROMPT, capacity - 1))
        return cls(
            capacity,
            1e9 / latency_ns,
            1e9 / interval_ns if interval_ns else None,
            prompt,
            (prompt - 1) * interval_ns + latency_ns if interval_ns else None,
            energy_pj,
            None if uncounted_pj is None else energy_pj + uncounted_pj,
        )
