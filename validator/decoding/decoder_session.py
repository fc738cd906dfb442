"""A session of a decoder: one sequence of tokens, whose caches stay on the chip."""

import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.option_spelling import spell_name, spell_option
from raptor.output import files
from raptor.output.decoder_files import DecoderFile
from raptor.output.files import TensorPlace
from validator.execution.inputs import check_named_arrays
from validator.execution.stepped_run import SteppedRun
from validator.model.types import named_type
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
_POSITION, _MODEL = "position", "model"
"""Entries of a saved session beside its states: the position, and the digest of the model."""
_SAVED_LIMIT_BYTES = 2**33


class DecoderSession:
    """A chip that runs one step of a decoder after the other. Several of one program are sessions side by side.

    `position`: number of tokens that the caches hold, and so the position of the next token.
    """

    def __init__(self, program: LoadedProgram, inputs: Mapping[str, npt.ArrayLike] = MappingProxyType({})) -> None:
        """Begins a sequence.

        `inputs`: arrays by name that all steps have in common, such as what an encoder computed, and first values of
        states that do not grow. Raises `UserError` for a program without states that grow, for names that are no such
        inputs, and for arrays of other shapes.
        """
        if program.decoder is None:
            raise UserError(
                f"{program.folder}: no state of this program grows; compile with {spell_option('capacity', 256)}"
            )
        self.program = program
        self.decoder: DecoderFile = program.decoder
        self._chip = SteppedRun(program)
        self.position = 0
        self.give(inputs)

    def give(self, inputs: Mapping[str, npt.ArrayLike]) -> None:
        """Begins a new sequence with other `inputs`, as the constructor does."""
        given, known = check_named_arrays(self.program.memory.inputs, inputs), {s.input for s in self.program.states}
        growing = {state.input for state in self.decoder.states} | {self.decoder.position}
        for place in self.program.memory.inputs:
            array = given.get(place.name)
            if array is not None and place.name in growing:
                raise UserError(f"input {place.name!r}: the session knows it; restore a saved session with load")
            if array is not None and array.shape != place.shape:
                raise UserError(f"input {place.name!r}: expected shape {list(place.shape)}, not {list(array.shape)}")
        self._first = {name: array for name, array in given.items() if name in known}
        self._same = {name: array for name, array in given.items() if name not in known}
        self.reset()

    @property
    def capacity(self) -> int:
        """The most tokens of a session."""
        return self.decoder.capacity

    def step(self, inputs: Mapping[str, Array] | int) -> dict[str, Array]:
        """Runs one step. `inputs`: arrays by name, or the id of a token. Returns the outputs that are no states.

        Raises `UserError` if the caches are full, before anything runs, and as `run_program` does.
        """
        self.require_room(1)
        given = self.token_inputs(inputs) if isinstance(inputs, int) else dict(inputs)
        states = self.program.state_inputs
        if wrong := [name for name in given if name in states or name == self.decoder.position]:
            raise UserError(f"input {wrong[0]!r}: the session knows it; restore a saved session with load")
        result = self._chip.step({**self._same, **given, self.decoder.position: np.array([self.position], np.int64)})
        self.position += 1
        made = {state.output for state in self.program.states}
        return {name: array for name, array in result.items() if name not in made}

    def states(self) -> dict[str, Array]:
        """Returns the states as the model has them, by its outputs; of growing ones, the rows of the tokens so far.

        A state of fixed size has all its rows, each at its place: the one of position P at P modulo their number.
        """
        found: dict[str, Array] = {}
        growing = {state.output: state for state in self.decoder.states}
        values = self._chip.save()
        for state in self.program.states:
            array, own = values[state.input], growing.get(state.output)
            if own is not None:
                array = array.transpose(np.argsort(own.permutation))
                if own.rows is None:
                    array = array.take(range(self.capacity - self.position, self.capacity), own.axis)
                else:
                    array = np.roll(array, self.position, own.axis)
            found[state.output] = array
        for stack in self.decoder.stacks:
            found[stack.output] = np.stack([found.pop(part.output) for part in stack.parts])
        return found

    def require_room(self, steps: int) -> None:
        """Raises `UserError` unless the caches have room for `steps` more tokens."""
        if self.position + steps > self.capacity:
            last = self.position + steps - 1
            raise UserError(
                f"position {last}: the cache holds {self.capacity} tokens; reset the session, or compile with a larger "
                f"{spell_option('capacity')}"
            )

    def require_prompt(self, ids: Sequence[int], tokens: int) -> None:
        """Raises `UserError` unless the model has all tokens of a prompt, and the caches room for `tokens` after it."""
        places = self._find_own_places()
        coding = places[0].coding if len(places) == 1 else None
        low, high = (coding.low, coding.high) if coding is not None else (None, None)
        for k, token in enumerate(ids):
            if low is not None and high is not None and not low <= token <= high:
                raise UserError(f"token {token}, number {k} of the prompt: the model has the tokens {low} to {high}")
        self.require_room(len(ids) + tokens - 1)

    def token_inputs(self, token: int) -> dict[str, Array]:
        """Returns the inputs of a step for the id of a token, without those that all steps have in common.

        Raises `UserError` for a model whose only other input, beside states and position, is not one whole number.
        """
        places = self._find_own_places()
        if len(places) != 1 or _token_type(places[0]) is None:
            names = ", ".join(p.name for p in places)
            raise UserError(
                f"a step takes {names or 'nothing'}, which is not the id of one token; give what all steps have in "
                f"common beforehand ({spell_name('inputs')}), or arrays by name in each step"
            )
        return {places[0].name: np.full(places[0].shape, token, _token_type(places[0]))}

    def find_token_inputs(self) -> list[str]:
        """Returns the inputs of a step that are one whole number, as the id of a token is."""
        return [place.name for place in self._find_own_places() if _token_type(place) is not None]

    def _find_own_places(self) -> list[TensorPlace]:
        """Returns the inputs that a step needs, beside states, the position, and what all steps have in common."""
        known = self.program.state_inputs | {self.decoder.position} | self._same.keys()
        return [p for p in self.program.memory.inputs if p.name not in known]

    def reset(self) -> None:
        """Begins a new sequence: switches the chip off and on, and gives states that do not grow their first values."""
        self._chip.reset()
        if self._first:
            self._chip.restore(self._first)
        self.position = 0

    def save(self, path: str | Path) -> None:
        """Writes the session to a .npz file: its position, and its states as the streams in `save` store them."""
        content, buffer = self._chip.save(), BytesIO()
        entries = {**{f"state/{name}": a for name, a in content.items()}, _POSITION: np.int64(self.position)}
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, array in {**entries, _MODEL: np.array(self._digest())}.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        file_access.write_atomic("path", Path(path), buffer.getvalue())

    def load(self, path: str | Path) -> None:
        """Goes on with a saved session. Raises `UserError` for a file that is no session of this program."""
        path = Path(path)
        values = _read_session(path)
        places = {f"state/{p.name}": p for p in self.program.memory.inputs}
        names = {f"state/{state.input}" for state in self.program.states}
        position = values.get(_POSITION)
        is_position = position is not None and position.shape == () and position.dtype.kind == "i"
        if values.keys() != names | {_POSITION, _MODEL} or position is None or not is_position:
            raise UserError(f"{path}: not a saved session of this program")
        if str(values[_MODEL]) != self._digest():
            raise UserError(f"{path}: a session of another model, or of another capacity")
        if not 0 <= int(position) <= self.capacity:
            raise UserError(f"{path}: position {int(position)} of a cache of {self.capacity} tokens")
        for name in sorted(names):
            if values[name].shape != places[name].shape or values[name].dtype.kind not in "fiu":
                raise UserError(f"{path}: {name} has shape {list(values[name].shape)}")
        self._chip.reset()
        self._chip.restore({name.removeprefix("state/"): values[name] for name in names})
        self.position = int(position)

    def _digest(self) -> str:
        return self.program.manifest.files[files.MODEL].sha256


def _token_type(place: TensorPlace) -> "np.dtype[Any] | None":
    """Returns the type of an input of one whole number; None for any other input."""
    kind = None if place.coding is None else named_type(place.coding.dtype)
    return kind if kind is not None and kind.kind in "iu" and int(np.prod(place.shape)) == 1 else None


def _read_session(path: Path) -> dict[str, Array]:
    try:
        if path.stat().st_size > _SAVED_LIMIT_BYTES:
            raise UserError(f"{path}: larger than a session can be")
        with zipfile.ZipFile(path) as listed:
            if sum(info.file_size for info in listed.infolist()) > _SAVED_LIMIT_BYTES:
                raise UserError(f"{path}: larger than a session can be")
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: not a saved session")
            return {name: archive[name] for name in archive.files}
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from e
    except (UserError, MemoryError):
        raise
    except Exception as e:  # exceptions of numpy, zipfile and zlib have no common base
        raise UserError(f"{path}: not a saved session: {e}") from e
