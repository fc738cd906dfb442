"""Sessions of a decoder in Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy.typing as npt

from raptor.api import Program
from raptor.common.errors import UserError
from raptor.common.options import arguments
from raptor.common.package_clashes import require_own_packages

require_own_packages("validator")

from validator.decoding.decoder_session import DecoderSession  # noqa: E402
from validator.decoding.generation import Sampling, generate_tokens  # noqa: E402
from validator.decoding.text_tokens import encode_text, require_tokenizer  # noqa: E402
from validator.load.output_directory import load_output  # noqa: E402


class Session(DecoderSession):
    """One sequence of tokens on a compiled decoder, whose caches stay on the chip from step to step.

    `program`: a program compiled with a `capacity`, or its directory. `inputs`: arrays by name that all steps have in
    common, such as what an encoder computed, and first values of states that do not grow. `position`: number of tokens
    so far. Several sessions of one program are independent.

    Raises `UserError` for a program without states that grow, and for inputs that the program does not have.
    """

    def __init__(
        self, program: "Program | str | Path", inputs: Mapping[str, npt.ArrayLike] = MappingProxyType({})
    ) -> None:
        folder = program.directory if isinstance(program, Program) else arguments.parse_path("program", program)
        super().__init__(load_output(folder), inputs)

    def generate(
        self, prompt: Sequence[int] | str, tokens: int, *, temperature: float = 0.0, seed: int = 0
    ) -> tuple[int, ...]:
        """Reads the ids of a prompt, one a step, and returns the ids of `tokens` new tokens.

        The prompt may be a text, if the model's property `tokenizer` is `bytes`; `bytes(ids)` is the new text.
        `temperature`: 0 takes the largest logit; else tokens are drawn by softmax(logits / temperature) with random
        numbers from `seed`. Raises `UserError`, before anything runs, for an id that is no token of the model, and if
        the cache has no room for all.
        """
        if isinstance(prompt, str):
            require_tokenizer(self.program)
            prompt = encode_text(prompt)
        ids = [arguments.parse_integer("prompt", one, 0, 2**31) for one in prompt]
        count = arguments.parse_integer("tokens", tokens, 1, 2**31)
        if not ids:
            raise UserError("prompt: expected the id of one token at least")
        sampling = Sampling(
            arguments.parse_finite("temperature", temperature, 0), arguments.parse_integer("seed", seed, 0, 2**62)
        )
        self.require_prompt(ids, count)
        return generate_tokens(self, ids, count, sampling).tokens
