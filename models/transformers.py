"""Transformer encoders: ViT-tiny (Touvron et al., arXiv:2012.12877) and BERT-tiny (Turc et al., arXiv:1908.08962)."""

from __future__ import annotations

import math

from models.model_builder import ModelBuilder, Tensor


def vit_tiny(b: ModelBuilder, *, image_size: int, depth: int, dim: int, heads: int, classes: int) -> Tensor:
    """1x3xSxS -> patches of 16x16 and a class token -> encoder layers -> 1 x classes.

    The class token is the first row of the positional embedding, added to a row of zeros, which is equivalent.
    """
    x = b.input(1, 3, image_size, image_size)
    x = b.conv(x, "patch_embed", dim, 16, stride=16, bias=True)
    patches = math.prod(x.shape[2:])
    x = b.reshape(x, "patches", 0, dim, patches)
    x = b.op("Transpose", "tokens", [x], perm=[0, 2, 1])
    x = b.op("Pad", "class_token", [x, b.constant("class_token.pads", [0, 1, 0, 0, 0, 0])])
    x = b.op("Add", "positions", [x, b.parameter("pos_embed", (1, patches + 1, dim), std=0.5)])
    for number in range(depth):
        name = f"blocks.{number}"
        y = _attention(b, b.layer_norm(x, f"{name}.norm1", epsilon=1e-6), f"{name}.attn", heads)
        x = b.op("Add", f"{name}.add1", [x, y])
        y = _feed_forward(b, b.layer_norm(x, f"{name}.norm2", epsilon=1e-6), f"{name}.mlp")
        x = b.op("Add", f"{name}.add2", [x, y])
    x = _first_token(b, b.layer_norm(x, "norm", epsilon=1e-6))
    return b.gemm(x, "head", classes, logits=1)


def bert_tiny(b: ModelBuilder, *, tokens: int, depth: int, dim: int, heads: int) -> Tensor:
    """1 x tokens x dim -> encoder layers -> pooled first token, 1 x dim.

    The input is the sum of word, segment and position embeddings; their lookup is not part of the model.
    """
    x = b.layer_norm(b.input(1, tokens, dim), "embeddings.norm", epsilon=1e-12)
    for number in range(depth):
        name = f"layer.{number}"
        y = _attention(b, x, f"{name}.attention", heads)
        x = b.layer_norm(b.op("Add", f"{name}.add1", [x, y]), f"{name}.norm1", epsilon=1e-12)
        y = _feed_forward(b, x, f"{name}.mlp")
        x = b.layer_norm(b.op("Add", f"{name}.add2", [x, y]), f"{name}.norm2", epsilon=1e-12)
    return b.op("Tanh", "pooler", [b.linear(_first_token(b, x), "pooler.dense", dim)])


def _attention(b: ModelBuilder, x: Tensor, name: str, heads: int) -> Tensor:
    """Adds multi-head self-attention with its output projection."""
    tokens, dim = x.shape[1:]
    joined = b.linear(x, f"{name}.qkv", 3 * dim)
    parts = {
        part: _split_heads(b, b.slice(joined, f"{name}.{part}", 2, start, start + dim), heads, keys=part == "key")
        for part, start in (("query", 0), ("key", dim), ("value", 2 * dim))
    }
    scores = b.op("MatMul", f"{name}.scores", [parts["query"], parts["key"]])
    scale = b.constant(f"{name}.scale.constant", (dim // heads) ** -0.5)
    scores = b.op("Softmax", f"{name}.softmax", [b.op("Mul", f"{name}.scale", [scores, scale])], axis=-1)
    y = b.op("MatMul", f"{name}.mean", [scores, parts["value"]])
    y = b.op("Transpose", f"{name}.transpose", [y], perm=[0, 2, 1, 3])
    return b.linear(b.reshape(y, f"{name}.join", 0, tokens, dim), f"{name}.proj", dim)


def _split_heads(b: ModelBuilder, x: Tensor, heads: int, *, keys: bool) -> Tensor:
    """N x tokens x dim -> N x heads x tokens x dim/heads; keys with the last two axes swapped."""
    tokens, dim = x.shape[1:]
    name = x.name.removesuffix("_output")
    x = b.reshape(x, f"{name}.heads", 0, tokens, heads, dim // heads)
    return b.op("Transpose", f"{name}.transpose", [x], perm=[0, 2, 3, 1] if keys else [0, 2, 1, 3])


def _feed_forward(b: ModelBuilder, x: Tensor, name: str) -> Tensor:
    """dim -> 4 dim -> Gelu -> dim."""
    dim = x.shape[-1]
    return b.linear(_gelu(b, b.linear(x, f"{name}.fc1", 4 * dim), f"{name}.gelu"), f"{name}.fc2", dim)


def _gelu(b: ModelBuilder, x: Tensor, name: str) -> Tensor:
    """Adds x (1 + erf(x / sqrt 2)) / 2, as exporters write it."""
    y = b.op("Div", f"{name}.div", [x, b.constant(f"{name}.root.constant", math.sqrt(2))])
    y = b.op("Add", f"{name}.add", [b.op("Erf", f"{name}.erf", [y]), b.constant(f"{name}.one.constant", 1.0)])
    y = b.op("Mul", f"{name}.mul", [x, y])
    return b.op("Mul", f"{name}.half", [y, b.constant(f"{name}.half.constant", 0.5)])


def _first_token(b: ModelBuilder, x: Tensor) -> Tensor:
    return b.reshape(b.slice(x, "first_token", 1, 0, 1), "pool", 0, x.shape[2])
