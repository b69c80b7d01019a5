"""The few layers both drafters are made of, with the parameter names of the public checkpoints."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DROPOUT = 0.1
"""In training only. A hundred thousand tokens are few for eight million weights."""


@dataclass(frozen=True)
class Shape:
    """What of the target's configuration shapes a drafter."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    eps: float
    max_positions: int


class Drafted(NamedTuple):
    """What a drafter says: ``tokens`` and the ``probabilities`` it gives them, both of one shape."""

    tokens: Tensor
    probabilities: Tensor


def best_tokens(logits: Tensor, vocabulary: Tensor | None = None) -> Drafted:
    """Return the most probable token per row of ``logits`` [..., vocabulary]; ``vocabulary``: the rows' ids."""
    highest, places = logits.max(dim=-1)
    probabilities = (highest - logits.logsumexp(dim=-1)).exp()
    return Drafted(places if vocabulary is None else vocabulary[places], probabilities)


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate ``x`` [rows, heads, head_dim] to ``positions`` [rows] (halves layout, as in Llama)."""
    half = x.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions.float()[:, None] * inverse
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Mlp(nn.Module):
    """Gated SiLU feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, same shape as ``x`` [rows, hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return F.dropout(out, DROPOUT, self.training)


class Projections(nn.Module):
    """Query, key, value and output projections; q/k norms over the head size if ``qk_norm``."""

    def __init__(self, shape: Shape, width: int, qk_norm: bool) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)
            self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated queries [rows, heads, head_dim]."""
        q: Tensor = self.q_proj(x).view(-1, self.shape.heads, self.shape.head_dim)
        return rope(self.q_norm(q) if self.qk_norm else q, positions, self.shape.rope_theta)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and plain values, each [rows, kv_heads, head_dim]."""
        k: Tensor = self.k_proj(x).view(-1, self.shape.kv_heads, self.shape.head_dim)
        v: Tensor = self.v_proj(x).view(-1, self.shape.kv_heads, self.shape.head_dim)
        return rope(self.k_norm(k) if self.qk_norm else k, positions, self.shape.rope_theta), v


def grouped_attention(
    q: Tensor, context: tuple[Tensor, Tensor], bias: Tensor, own: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Attend from blocks of queries to a shared context and to each block's own keys, in one softmax.

    ``q`` [blocks, size, heads, dim]; ``context`` keys and values [rows, kv_heads, dim]; ``bias``
    [blocks, rows], 0 or -inf; ``own`` keys and values [blocks, keys, kv_heads, dim].
    Returns [blocks, size, heads * dim].
    """
    blocks, size, heads, dim = q.shape
    keys, values = context
    groups, rows = keys.shape[1], keys.shape[0]
    grouped = q.view(blocks, size, groups, heads // groups, dim).permute(2, 0, 1, 3, 4) * dim**-0.5
    per_block = size * (heads // groups)
    grouped = grouped.reshape(groups, blocks * per_block, dim)
    scores = (grouped @ keys.permute(1, 2, 0)).view(groups, blocks, per_block, rows) + bias[None, :, None]
    if own is not None:
        own_keys, own_values = (t.permute(2, 0, 1, 3) for t in own)
        own_scores = grouped.view(groups, blocks, per_block, dim) @ own_keys.transpose(-1, -2)
        scores = torch.cat([scores, own_scores], dim=-1)
    weights = scores.softmax(dim=-1)
    shared = weights[..., :rows].reshape(groups, blocks * per_block, rows)
    out = (shared @ values.permute(1, 0, 2)).view(groups, blocks, per_block, dim)
    if own is not None:
        out = out + weights[..., rows:] @ own_values
    out = out.view(groups, blocks, size, heads // groups, dim).permute(1, 2, 0, 3, 4)
    merged: Tensor = out.reshape(blocks, size, heads * dim)
    return merged
