"""Export small decoders with random weights, in an environment that has an exporter: `make_exports.py NAME FOLDER`.

NAME is `optimum` (text-generation-with-past), `genai` (the model builder of onnxruntime-genai, in fp32 and int4), or
`torch` (transformers' StaticCache, and a decoder that writes its cache in several ways; by torch.onnx.export). For each
model there is a line `MODEL FORM FILE`, or `MODEL FORM failed: REASON`. Files that exist are taken as they are. This
file is run by the exporter's own Python, so it imports nothing of RAPTOR.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROWS, VOCABULARY, HEADS, SIZE = 16, 96, 4, 16
WIDTH = HEADS * SIZE
_IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
_PLAIN = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
_WINDOW = {"head_dim": SIZE, "query_pre_attn_scalar": SIZE, "sliding_window": 8}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "GPT-2": ("GPT2", _GPT2),
    "Llama": ("Llama", _LLAMA),
    "Mistral": ("Mistral", {**_LLAMA, "sliding_window": None}),
    "Mistral, window": ("Mistral", {**_LLAMA, "sliding_window": 8}),
    "Qwen2": ("Qwen2", _LLAMA),
    "Qwen3": ("Qwen3", {**_LLAMA, "head_dim": SIZE}),
    "Gemma": ("Gemma", {**_LLAMA, "head_dim": SIZE}),
    "Gemma 2": ("Gemma2", {**_LLAMA, **_WINDOW}),
    "Gemma 3": ("Gemma3", {**_LLAMA, **_WINDOW}),
    "Phi": ("Phi", {**_PLAIN, "hidden_size": 2 * WIDTH}),
    "Phi-3": ("Phi3", {**_LLAMA, "original_max_position_embeddings": 64}),
    "GPT-NeoX": ("GPTNeoX", _PLAIN),
    "OPT": ("OPT", {**_PLAIN, "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "Bloom": ("Bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "OLMo": ("Olmo", _LLAMA),
    "Granite": ("Granite", _LLAMA),
    "SmolLM3": ("SmolLM3", _LLAMA),
    "Ernie 4.5": ("Ernie4_5", {**_LLAMA, "head_dim": SIZE}),
    "Nemotron": ("Nemotron", {**_LLAMA, "hidden_size": 2 * WIDTH}),
}
"""Name -> begin of the names of transformers' classes, and the fields of the configuration."""
_OF_EXPORTER = {
    "optimum": [name for name in MODELS if name not in ("Mistral, window", "Ernie 4.5", "Nemotron")],
    "genai": [name for name in MODELS if name not in ("GPT-2", "Gemma 3", "GPT-NeoX", "OPT", "Bloom")],
    "torch": ["GPT-2", "Llama", "Mistral", "Qwen2", "Qwen3", "Phi-3", "OLMo", "Granite"],
}
WRITES = ("index_copy", "index_put", "assignment", "scatter", "where")
"""Ways to write a row of a cache in PyTorch."""


def main() -> None:
    exporter, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    torch = import_module("torch")
    torch.set_num_threads(1)
    for name, form, export in _find_exports(exporter, folder):
        torch.manual_seed(0)
        file = folder / f"{name} {form}".replace(" ", "_").replace(",", "") / "model.onnx"
        try:
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                export(file)
            print(name, form, file, sep="\t", flush=True)
        except Exception as error:  # exporters raise what they like; the table tells it
            text = str(error).strip() or type(error).__name__
            print(name, form, f"failed: {text.splitlines()[-1][:200]}", sep="\t", flush=True)


def _find_exports(exporter: str, folder: Path) -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for name in _OF_EXPORTER[exporter]:
        if exporter == "optimum":
            yield name, "fp32", lambda file, name=name: _export_by_optimum(name, file)
        elif exporter == "genai":
            for precision in ("fp32", "int4"):
                yield name, precision, lambda file, name=name, form=precision: _export_by_genai(name, form, file)
        else:
            yield name, "fixed cache", lambda file, name=name: _export_static_cache(name, file)
    for how in WRITES if exporter == "torch" else ():
        yield f"one layer, {how}", "fixed cache", lambda file, how=how: _export_by_torch(_make_decoder(how), 2, file)


def _make_model(name: str) -> tuple[Any, Any]:
    """Returns a model of transformers, and its configuration."""
    transformers = import_module("transformers")
    stem, fields = MODELS[name]
    config_name = f"{stem}TextConfig" if stem == "Gemma3" else f"{stem}Config"
    config = getattr(transformers, config_name)(**_IDS, **fields)
    kind = getattr(transformers, f"{stem}ForCausalLM", None) or getattr(transformers, f"{stem}LMHeadModel")
    return kind(config).eval().float(), config


def _save_model(name: str, folder: Path) -> Path:
    """Writes a model with a tokenizer of its words, as exporters read them."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    words = tokenizers.models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t3")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
    _make_model(name)[0].save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _export_by_optimum(name: str, file: Path) -> None:
    saved = _save_model(name, file.parent / "model")
    options = {"task": "text-generation-with-past", "do_validation": False, "no_post_process": False}
    import_module("optimum.exporters.onnx").main_export(str(saved), str(file.parent), monolith=False, **options)


def _export_by_genai(name: str, precision: str, file: Path) -> None:
    saved = _save_model(name, file.parent / "model")
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(saved), "-o", str(file.parent)]
    command += ["-p", precision, "-e", "cpu", "-c", str(file.parent / "cache"), "--extra_options", "hf_token=false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-200:])


def _export_static_cache(name: str, file: Path) -> None:
    """Exports a model of transformers with the tensors of its StaticCache as inputs and outputs."""
    torch, transformers = import_module("torch"), import_module("transformers")
    module, config = _make_model(name)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.module = module

        def forward(self, ids: Any, at: Any, *held: Any) -> Any:
            cache = transformers.StaticCache(config=config, max_cache_len=ROWS)
            for layer, keys, values in zip(cache.layers, held[::2], held[1::2], strict=True):
                layer.keys, layer.values = keys.clone(), values.clone()
                if not getattr(layer, "is_initialized", True):
                    layer.lazy_initialization(layer.keys, layer.values)
                    layer.keys, layer.values = keys.clone(), values.clone()
                if torch.is_tensor(getattr(layer, "cumulative_length", None)):
                    layer.cumulative_length = at.clone()
            made = self.module(
                input_ids=ids, position_ids=at[None], past_key_values=cache, use_cache=True, cache_position=at
            )
            return made.logits, *(x for layer in cache.layers for x in (layer.keys, layer.values))

    _export_by_torch(Step(), getattr(config, "num_key_value_heads", HEADS), file, layers=2)


def _export_by_torch(module: Any, heads: int, file: Path, layers: int = 1) -> None:
    torch = import_module("torch")
    names = [f"{kind}_{n}" for n in range(layers) for kind in ("key", "value")]
    caches = [torch.zeros(1, heads, ROWS, SIZE) for _ in names]
    given = (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), *caches)
    inputs = ["input_ids", "cache_position", *(f"past_{name}" for name in names)]
    outputs = ["logits", *(f"present_{name}" for name in names)]
    with torch.no_grad():
        torch.onnx.export(
            module.eval(),
            given,
            str(file),
            dynamo=True,
            external_data=False,
            input_names=inputs,
            output_names=outputs,
        )


def _make_decoder(how: str) -> Any:
    """Returns a decoder of one layer that writes the row `at` of its caches [1, 2, rows, size] in one of `WRITES`."""
    torch = import_module("torch")
    nn, heads = torch.nn, 2

    def write(cache: Any, at: Any, new: Any) -> Any:
        if how == "index_copy":
            return cache.index_copy(2, at, new)
        if how == "scatter":
            return cache.scatter(2, at.view(1, 1, -1, 1).expand(1, heads, 1, SIZE), new)
        if how == "index_put":
            return cache.transpose(0, 2).index_put((at,), new.transpose(0, 2)).transpose(0, 2)
        if how == "where":
            return torch.where((torch.arange(ROWS) == at).view(1, 1, -1, 1), new, cache)
        cache = cache.clone()
        cache[:, :, at] = new
        return cache

    class Decoder(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            width = heads * SIZE
            self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(ROWS, width)
            self.parts, self.head = nn.Linear(width, 3 * width), nn.Linear(width, VOCABULARY)

        def forward(self, ids: Any, at: Any, keys: Any, values: Any) -> Any:
            x = self.words(ids) + self.places(at)
            q, k, v = (p.view(1, 1, heads, SIZE).transpose(1, 2) for p in self.parts(x).chunk(3, -1))
            keys, values = write(keys, at, k), write(values, at, v)
            seen = (torch.arange(ROWS) <= at)[None, None, None]
            mixed = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            return self.head(x + mixed.transpose(1, 2).reshape(1, 1, -1)), keys, values

    return Decoder()


if __name__ == "__main__":
    main()
