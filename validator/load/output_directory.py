"""Loads an output directory as a Program. The directory is not trusted: every fault in it is a `UserError`."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.program_path import check_program_path
from raptor.output import files
from raptor.output.decoder_files import DecoderFile
from raptor.output.files import (
    FileEntry,
    MemoryMap,
    OutputManifest,
    ProbeList,
    SimulatorConfig,
    TensorCoding,
    TensorPlace,
    TensorProbe,
)
from raptor.output.resident_files import ResidentMap, ResidentState
from raptor.output.trim_files import TrimTable
from raptor.target import encoding
from raptor.target.arch import Target, read_stored_target
from raptor.target.isa import RECORD, Records
from raptor.target.tensor_layout import Image, TensorRegion
from validator.crossbar.load_repair import with_repair
from validator.load import stream_check
from validator.load.decoder_check import check_decoder
from validator.program.coding import element_bytes, find_coding_fault
from validator.program.group_weights import GroupLimit, load_weights, no_weights
from validator.program.npy import BYTE_TYPES, FLOAT_TYPES, parse_npy
from validator.program.program import LoadedProgram, ResidentMemory, Values
from validator.program.trim_constants import check_trim_table

MOST_DELAY = 100
"""Largest delay of an output in passes."""
MEMORY_LIMIT_BYTES = 8 * 2**30
_FILE_LIMIT_BYTES = 16 * 2**30
_FLOAT_BYTES = 4
_BYTES_PER_LOCAL, _BYTES_PER_GLOBAL = 2, 6
"""Bytes allocated per byte of memory in an integer program: value and written flag; in global memory also the owner."""


def load_output(
    path: str | Path, *, check_hashes: bool = True, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> LoadedProgram:
    """Reads the directory and checks everything that can be checked without running the program.

    `memory_limit_bytes` limits the bytes that a run allocates for the memories of the chip (4 bytes per element, or
    some bytes per byte in an integer program). Raises `UserError` that names the file and the field, or `ProgramError`
    that names the instruction.
    """
    folder = Path(path)
    check_program_path(folder, directory=True)
    manifest = file_access.read_json_file(OutputManifest, folder, files.MANIFEST)
    check_files(folder, manifest.files, files.MANIFEST, check_hashes=check_hashes)
    if manifest.backend is not None:
        return _load_elsewhere(folder, manifest, memory_limit_bytes)
    check_extra(folder, "core_", manifest.files, f"stream that {files.MANIFEST}")
    config = file_access.read_json_file(SimulatorConfig, folder, _listed(manifest, files.CONFIG))
    memory = file_access.read_json_file(MemoryMap, folder, _listed(manifest, files.MEMORY))
    layers = file_access.read_json_file(ProbeList, folder, files.LAYERS) if files.LAYERS in manifest.files else None
    target = read_stored_target(folder, _listed(manifest, files.ARCH))
    _check_memory(memory, config, manifest, memory_limit_bytes)
    program = LoadedProgram(
        folder=folder,
        manifest=manifest,
        config=config,
        memory=memory,
        layers=layers,
        streams=_load_streams(folder, manifest, config),
        weights=load_weights(folder, manifest, _group_limits(config, target)),
        constants=_load_constants(folder, manifest, memory),
        resident=_load_resident(folder, manifest, config, memory),
        trim=file_access.read_json_file(TrimTable, folder, files.TRIM) if files.TRIM in manifest.files else None,
        decoder=file_access.read_json_file(DecoderFile, folder, files.DECODER)
        if files.DECODER in manifest.files
        else None,
    )
    if program.decoder is not None:
        check_decoder(program.decoder, program)
    stream_check.check_program(program, target)
    for name in program.resident.auxiliary if program.resident else ():
        stream_check.check_program(program.auxiliary_program(name), target)
    _check_probes(program, files.LAYERS, layers.probes if layers else (), memory_limit_bytes)
    sums = tuple(layer.sums for layer in program.trim.layers) if program.trim else ()
    _check_probes(program, files.TRIM, sums, memory_limit_bytes)
    check_trim_table(program)
    return with_repair(program, target)


def load_moved(folder: Path, program: LoadedProgram, cores: Sequence[int], streams: Sequence[Records]) -> LoadedProgram:
    """Reads the copy of a loaded program in which core k is `cores[k]` and has the given streams.

    The copy is of this process: hashes, instructions and matrices are not read and checked again.
    """
    manifest = file_access.read_json_file(OutputManifest, folder, files.MANIFEST)
    config = file_access.read_json_file(SimulatorConfig, folder, files.CONFIG)
    memory = file_access.read_json_file(MemoryMap, folder, files.MEMORY)
    layers = file_access.read_json_file(ProbeList, folder, files.LAYERS) if program.layers is not None else None
    return replace(
        program,
        folder=folder,
        manifest=manifest,
        config=config,
        memory=memory,
        layers=layers,
        streams=tuple(streams),
        weights=program.weights.move(cores),
        resident=_load_resident(folder, manifest, config, memory),
        trim=file_access.read_json_file(TrimTable, folder, files.TRIM) if program.trim is not None else None,
    )


def _load_elsewhere(folder: Path, manifest: OutputManifest, limit_bytes: int) -> LoadedProgram:
    """Reads the directory of a program that its back end executes: without streams, and without groups of crossbars."""
    memory = file_access.read_json_file(MemoryMap, folder, _listed(manifest, files.MEMORY))
    layers = file_access.read_json_file(ProbeList, folder, files.LAYERS) if files.LAYERS in manifest.files else None
    cores = len(memory.local_bytes)
    if not cores:
        raise _bad("local_bytes has no core")
    config = SimulatorConfig(core_cnt=cores, array_group_map={f"core{i}": () for i in range(cores)})
    _check_memory(memory, config, manifest, limit_bytes)
    program = LoadedProgram(
        folder=folder,
        manifest=manifest,
        config=config,
        memory=memory,
        layers=layers,
        streams=(np.zeros(0, RECORD),) * cores,
        weights=no_weights(cores),
        constants=_load_constants(folder, manifest, memory),
    )
    _check_probes(program, files.LAYERS, layers.probes if layers else (), limit_bytes)
    return program


def _listed(manifest: OutputManifest, name: str) -> str:
    if name not in manifest.files:
        raise UserError(f"{files.MANIFEST}: {name} is not in the list of files")
    return name


def check_files(folder: Path, entries: Mapping[str, FileEntry], listing: str, *, check_hashes: bool) -> None:
    """Raises `UserError` unless the files that `listing` names have the size and hash that it says."""
    for name, entry in entries.items():
        file_access.check_file_entry(folder, name, entry.size_bytes, entry.sha256 if check_hashes else None, listing)


def check_extra(folder: Path, prefix: str, known: Collection[str], what: str) -> None:
    """Raises `UserError` for a file whose name begins with `prefix`, and that is not known."""
    extra = sorted(p.name for p in folder.iterdir() if p.name.startswith(prefix) and p.name not in known)
    if extra:
        raise UserError(f"{folder / extra[0]}: a {what} does not list")


def _load_streams(
    folder: Path, manifest: OutputManifest, config: SimulatorConfig, prefix: str = ""
) -> tuple[Records, ...]:
    """Returns the streams whose names begin with `prefix`: none for those of each sample, or a folder."""
    cores = range(config.core_cnt)
    wanted = {prefix + files.stream_name(core, suffix) for core in cores for suffix in ("json", "pim")}
    listed = (name for name in manifest.files if name.startswith(f"{prefix}core_"))
    odd = sorted(name for name in listed if "/" not in name[len(prefix) :] and name not in wanted)
    if odd:
        raise UserError(f"{folder / odd[0]}: not a stream of cores 0 to {config.core_cnt - 1}")
    return tuple(_load_stream(folder, manifest, core, prefix) for core in cores)


def _load_resident(
    folder: Path, manifest: OutputManifest, config: SimulatorConfig, memory: MemoryMap
) -> ResidentMemory | None:
    """Returns what stays in local memory, and what writes it; None without `resident.json`."""
    if files.RESIDENT not in manifest.files:
        return None
    listed = file_access.read_json_file(ResidentMap, folder, files.RESIDENT)
    for kept in listed.cores:
        if kept.core >= config.core_cnt:
            raise UserError(f"{files.RESIDENT}: core {kept.core} of {config.core_cnt}")
        local = memory.local_bytes[kept.core]
        for low, size in kept.spans:
            if low + size > local or low % memory.element_bytes or size % memory.element_bytes:
                raise UserError(f"{files.RESIDENT}: core {kept.core}: {size} bytes at {low} of {local} bytes in use")
    spans = [(kept.core, low, size) for kept in listed.cores for low, size in kept.spans]
    auxiliary: dict[str, tuple[Records, ...]] = {}
    for name in files.AUXILIARY if listed.states else (files.INIT,):
        auxiliary[name] = _load_streams(folder, manifest, config, f"{name}/")
        check_extra(folder / name, "core_", _inside(manifest, name), f"stream that {files.MANIFEST}")
    for state in listed.states:
        _check_state(state, memory, manifest, spans)
    delays = _delays(listed, memory)
    return ResidentMemory(auxiliary, np.array(spans, np.int64).reshape(-1, 3), listed.states, delays)


def _delays(listed: ResidentMap, memory: MemoryMap) -> dict[str, int]:
    """Returns the delays of outputs. Raises `UserError` for an unknown output, and for too many passes."""
    delays = {delay.output: delay.passes for delay in listed.delays}
    for name in delays.keys() - {place.name for place in memory.outputs}:
        raise UserError(f"{files.RESIDENT}: delay of {name!r}, which is no output in {files.MEMORY}")
    for name, passes in delays.items():
        if passes > MOST_DELAY:
            raise UserError(f"{files.RESIDENT}: {name!r} is {passes} passes late, more than {MOST_DELAY}")
    return delays


def _check_state(
    state: ResidentState, memory: MemoryMap, manifest: OutputManifest, spans: Sequence[tuple[int, int, int]]
) -> None:
    """Raises `UserError` unless a state is an input, and resident spans hold all of it."""
    what = f"{files.RESIDENT}: state {state.input!r}"
    place = next((place for place in memory.inputs if place.name == state.input), None)
    if place is None or place.shape != state.shape or place.coding != state.coding:
        raise UserError(f"{what}: {files.MEMORY} has no such input of this shape and type")
    if any(output.name == state.output for output in memory.outputs):
        raise UserError(f"{what}: {state.output!r} is an output in {files.MEMORY}, too")
    _check_image(what, state.image_shape, state.channel_axis, MEMORY_LIMIT_BYTES)
    if math.prod(state.shape) != state.image.elements:
        raise UserError(f"{what}: shape {state.shape} and image_shape {state.image_shape} differ in size")
    for tile in state.tiles:
        size = _tile_elements(what, state.image, tile.region) * _width(memory, state.coding)
        if (tile.core, tile.address, size) not in spans:
            raise UserError(f"{what}: {size} bytes at {tile.address} of core {tile.core} are not resident")
    _check_cover(what, state.image, [tile.region for tile in state.tiles], once=False)


def _inside(manifest: OutputManifest, folder: str) -> set[str]:
    """Returns the names, in a folder, of the files that a manifest lists there."""
    return {name.removeprefix(f"{folder}/") for name in manifest.files if name.startswith(f"{folder}/")}


def _load_stream(folder: Path, manifest: OutputManifest, core: int, prefix: str = "") -> Records:
    binary, text = (prefix + files.stream_name(core, suffix) for suffix in ("pim", "json"))
    name = binary if binary in manifest.files else _listed(manifest, text)
    content = file_access.read_bytes(folder, name, limit_bytes=_FILE_LIMIT_BYTES)
    try:
        return encoding.decode_pim(content) if name == binary else encoding.decode_json(content)
    except UserError as e:
        raise UserError(f"{folder / name}: {e}") from e


def _group_limits(config: SimulatorConfig, target: Target) -> list[list[GroupLimit]]:
    if config.core_cnt > target.core_count:
        raise UserError(f"{files.CONFIG}: {config.core_cnt} cores, but {files.ARCH} has {target.core_count}")
    limits: list[list[GroupLimit]] = []
    for core in range(config.core_cnt):
        counts = config.group_sizes(core)
        if sum(counts) > target.xbars_per_core:
            raise UserError(
                f"{files.CONFIG}: core {core} uses {sum(counts)} crossbars, {files.ARCH} has {target.xbars_per_core}"
            )
        # Weights of one bit are the most that fit; `check` uses the width each mvmul names.
        limits.append([GroupLimit(target.xbar_rows, count * target.weight_columns(1)) for count in counts])
    return limits


def _load_constants(folder: Path, manifest: OutputManifest, memory: MemoryMap) -> Values:
    elements, floats = memory.constants.elements, manifest.numbers == "float"
    if elements == 0 and files.CONSTANTS not in manifest.files:
        return np.zeros(0, np.float32 if floats else np.uint8)
    name = _listed(manifest, files.CONSTANTS)
    content = file_access.read_bytes(folder, name, limit_bytes=elements * (_FLOAT_BYTES if floats else 1) + 2**16)
    return parse_npy(content, (elements,), str(folder / name), FLOAT_TYPES if floats else BYTE_TYPES)


def _check_memory(memory: MemoryMap, config: SimulatorConfig, manifest: OutputManifest, limit_bytes: int) -> None:
    floats = manifest.numbers == "float"
    _check_width(memory, floats=floats)
    if len(memory.local_bytes) != config.core_cnt:
        raise _bad(f"local_bytes has {len(memory.local_bytes)} entries for {config.core_cnt} cores")
    _check_size(_needed(memory, floats=floats), limit_bytes)
    _check_span("constants", memory.constants.address, memory.constants.elements * memory.element_bytes, memory)
    _check_tables(memory)
    for kind, places in (("input", memory.inputs), ("output", memory.outputs)):
        repeated = [name for name, count in Counter(p.name for p in places).items() if count > 1]
        if repeated:
            raise _bad(f"two {kind}s are called {repeated[0]!r}")
        for place in places:
            what = f"{kind} {place.name!r}"
            _check_place(what, place, memory, limit_bytes)
            _check_coding(f"{files.MEMORY}: {what}", place.coding, place.shape, manifest)
    for place in memory.outputs:
        _check_cover(f"output {place.name!r}", place.image, [t.region for t in place.tiles])


def _check_tables(memory: MemoryMap) -> None:
    constants = memory.constants
    end = constants.address + constants.elements * memory.element_bytes
    for table in memory.tables:
        if table.address < constants.address or table.end_address > end:
            raise _bad(f"the table of {table.rows} rows at {table.address} is not among the constants")


def _check_width(memory: MemoryMap, *, floats: bool) -> None:
    width = memory.element_bytes
    if floats and width != -(-memory.element_bits // 8):
        raise _bad(f"element_bytes {width} does not hold element_bits {memory.element_bits}")
    if not floats and width != 1:
        raise _bad(f"element_bytes is {width}, but a program with integers counts bytes: expected 1")


def _needed(memory: MemoryMap, *, floats: bool) -> int:
    """Returns the bytes that a run allocates for the memories of the chip, owners of global memory included."""
    if floats:
        return (2 * memory.size_bytes + sum(memory.local_bytes)) // memory.element_bytes * _FLOAT_BYTES
    return _BYTES_PER_GLOBAL * memory.size_bytes + _BYTES_PER_LOCAL * sum(memory.local_bytes)


def _check_coding(what: str, coding: TensorCoding | None, shape: tuple[int, ...], manifest: OutputManifest) -> None:
    """Raises `UserError` for a wrong or missing coding; in programs of floats, float32 tensors need none."""
    if coding is None and manifest.numbers != "float":
        raise UserError(f"{what}: no coding, in a program with integers")
    fault = find_coding_fault(coding, shape, manifest.numbers) if coding else None
    if fault:
        raise UserError(f"{what}: coding: {fault}")


def _check_size(needed_bytes: int, limit_bytes: int) -> None:
    if needed_bytes > limit_bytes:
        raise UserError(
            f"running this program takes {needed_bytes / 2**30:.1f} GiB of memory, more than the limit of "
            f"{limit_bytes / 2**30:.1f} GiB"
        )


def _check_place(what: str, place: TensorPlace, memory: MemoryMap, limit_bytes: int) -> None:
    _check_image(what, place.image_shape, place.channel_axis, limit_bytes, turned=place.turned)
    if math.prod(place.shape) != place.image.elements:
        raise _bad(f"{what}: shape {place.shape} and image_shape {place.image_shape} differ in size")
    for tile in place.tiles:
        size = _tile_elements(what, place.image, tile.region) * _width(memory, place.coding)
        _check_span(what, tile.address, size, memory)


def _width(memory: MemoryMap, coding: TensorCoding | None) -> int:
    return element_bytes(coding, memory.element_bytes)


def _check_image(
    what: str, shape: tuple[int, ...], channel_axis: int, limit_bytes: int, *, turned: bool = False
) -> None:
    if channel_axis >= len(shape):
        raise _bad(f"{what}: channel_axis {channel_axis} of an image_shape of {len(shape)} dimensions")
    if turned and len(shape) < 3:
        raise _bad(f"{what}: turned, with an image_shape of {len(shape)} dimensions")
    _check_size(math.prod(shape) * _FLOAT_BYTES, limit_bytes)


def _tile_elements(what: str, image: Image, region: TensorRegion) -> int:
    cols = region.cols or (0, image.width)
    for (low, high), bound in ((region.channels, image.channels), (region.rows, image.rows), (cols, image.width)):
        if not low < high <= bound:
            size = f"{image.channels} channels, {image.rows} rows, {image.width} columns"
            raise _bad(f"{what}: tile {region} of an image with {size}")
    return region.elements(image)


def _check_span(what: str, address: int, size: int, memory: MemoryMap) -> None:
    if address % memory.element_bytes:
        raise _bad(f"{what}: address {address} is not a multiple of element_bytes {memory.element_bytes}")
    if address + size > memory.size_bytes:
        elements = size // memory.element_bytes
        raise _bad(f"{what}: {elements} elements at {address} leave the global memory of {memory.size_bytes} bytes")


def _check_cover(what: str, image: Image, regions: Iterable[TensorRegion], *, once: bool = True) -> None:
    """Raises `UserError` unless tiles cover every pixel and channel; with `once`, exactly once."""
    cover = np.zeros((image.rows, image.width, image.channels), np.int16)
    for region in regions:
        cover[region.index()] += 1
    wrong = cover != 1 if once else cover == 0
    if wrong.any():
        row, col, channel = (int(i) for i in np.argwhere(wrong)[0])
        times = int(cover[row, col, channel])
        raise _bad(f"{what}: {times} tiles hold row {row} column {col} of channel {channel}, expected 1")


def _check_probes(program: LoadedProgram, name: str, probes: Sequence[TensorProbe], limit_bytes: int) -> None:
    """Checks the probes of a file. Tiles of a probe may overlap, because neighbouring cores may both need a row."""
    memory, floats = program.memory, not program.has_integers
    total = memory.size_bytes + sum(memory.local_bytes) if floats else _needed(memory, floats=False)
    scale = _FLOAT_BYTES if floats else 1
    for probe in probes:
        what = f"{name}, tensor {probe.tensor!r}"
        _check_image(what, probe.image_shape, probe.channel_axis, limit_bytes, turned=probe.turned)
        _check_coding(what, probe.coding, probe.image_shape, program.manifest)
        for tile in probe.tiles:
            own = program.manifest.backend is None
            if tile.core >= program.core_count or (own and tile.pc > len(program.streams[tile.core])):
                raise UserError(f"{what}: no instruction {tile.pc} of core {tile.core}")
            size = _tile_elements(what, probe.image, tile.region) * _width(memory, probe.coding)
            if tile.address % memory.element_bytes or tile.address + size > memory.local_bytes[tile.core]:
                raise UserError(f"{what}: {size} bytes at {tile.address} leave the local memory of core {tile.core}")
            total += size if floats else _BYTES_PER_LOCAL * size
            _check_size(total // memory.element_bytes * scale, limit_bytes)
        _check_cover(what, probe.image, [t.region for t in probe.tiles], once=False)


def _bad(message: str) -> UserError:
    return UserError(f"{files.MEMORY}: {message}")
