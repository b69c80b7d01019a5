"""The DFlash drafter: a block of mask tokens is filled in one pass, given the target's states as context.

The computation is that of vLLM's ``qwen3_dflash.py``: context keys and values are projections of
``hidden_norm(fc(states))`` in every layer; the block [anchor, mask, ...] attends to the context before the
anchor and, both ways, to itself; the target's own embedding and output rows are used.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whiflash_engine.training.features import DFLASH_TAPS, Sequence
from whiflash_engine.training.labels import soft_labels
from whiflash_engine.training.layers import (
    DROPOUT,
    Drafted,
    Mlp,
    Projections,
    Shape,
    best_tokens,
    grouped_attention,
)

BLOCK = 8
DECAY = 4.0
"""The k-th drafted token weighs exp(-(k - 1) / DECAY): it counts only if all before it were right."""
_RANDOM_NEGATIVES = 512


@dataclass(frozen=True)
class Blocks:
    """Where to draft: ``anchors[i]`` are positions of anchor tokens in the answer of ``sequences[i]``."""

    sequences: list[Sequence]
    anchors: list[Tensor]
    size: int = BLOCK
    """Tokens of a block, the anchor included; less than ``BLOCK`` early in training, when it is cheaper."""


@dataclass(frozen=True)
class Frame:
    """What all layers share: the fused context, where rows and block tokens stand, who may see what."""

    context: Tensor
    rows: list[int]
    context_positions: Tensor
    positions: Tensor
    biases: list[Tensor]
    size: int


class Layer(nn.Module):
    """One decoder layer with q/k norms."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = Projections(shape, shape.hidden, qk_norm=True)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        """Return the next states of all block tokens [anchors * size, hidden]."""
        keys, values = self.self_attn.keys_values(frame.context, frame.context_positions)
        normed = self.input_layernorm(x)
        grouped = (-1, frame.size)
        queries = torch.unflatten(self.self_attn.queries(normed, frame.positions), 0, grouped)
        own_keys, own_values = (
            torch.unflatten(t, 0, grouped) for t in self.self_attn.keys_values(normed, frame.positions)
        )
        outs, at = [], 0
        pairs = zip(torch.split(keys, frame.rows), torch.split(values, frame.rows), strict=True)
        for pair, bias in zip(pairs, frame.biases, strict=True):
            here = slice(at, at + len(bias))
            outs.append(grouped_attention(queries[here], pair, bias, (own_keys[here], own_values[here])))
            at += len(bias)
        x = x + self.self_attn.o_proj(torch.cat(outs).flatten(0, 1))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlash(nn.Module):
    """Trainable DFlash drafter; ``embedding`` [vocab, hidden] is the target's and stays as it is."""

    embedding: Tensor

    def __init__(self, shape: Shape, embedding: Tensor, mask_token: int, layers: int) -> None:
        super().__init__()
        self.mask_token = mask_token
        self.fc = nn.Linear(len(DFLASH_TAPS) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.register_buffer("embedding", embedding, persistent=False)

    def _frame(self, blocks: Blocks) -> Frame:
        rows = [int(anchors.max()) for anchors in blocks.anchors]
        states = [s.select(DFLASH_TAPS)[:n] for s, n in zip(blocks.sequences, rows, strict=True)]
        anchors = torch.cat(blocks.anchors)
        return Frame(
            context=F.dropout(self.hidden_norm(self.fc(torch.cat(states))), DROPOUT, self.training),
            rows=rows,
            context_positions=torch.cat([torch.arange(n) for n in rows]),
            positions=(anchors[:, None] + torch.arange(blocks.size)).flatten(),
            biases=[
                torch.zeros(len(a), n).masked_fill(torch.arange(n) >= a[:, None], -torch.inf)
                for a, n in zip(blocks.anchors, rows, strict=True)
            ],
            size=blocks.size,
        )

    def forward(self, blocks: Blocks) -> Tensor:
        """Return the states of the mask slots after the last norm: [anchors, size - 1, hidden]."""
        frame = self._frame(blocks)
        tokens = torch.full((len(frame.positions) // blocks.size, blocks.size), self.mask_token)
        tokens[:, 0] = torch.cat([s.ids[a] for s, a in zip(blocks.sequences, blocks.anchors, strict=True)])
        x = self.embedding[tokens.flatten()]
        for layer in self.layers:
            x = layer(x, frame)
        out: Tensor = self.norm(torch.unflatten(x, 0, (-1, blocks.size))[:, 1:])
        return out


def sample_anchors(sequence: Sequence, count: int, generator: torch.Generator) -> Tensor:
    """Return up to ``count`` different anchor positions of the answer, each with a token after it."""
    places = sequence.length - 1 - sequence.prompt
    order = torch.randperm(places, generator=generator)[:count]
    return (order + sequence.prompt).sort().values


def block_labels(label: Tensor, sequence: Sequence, anchors: Tensor, size: int = BLOCK) -> Tensor:
    """Gather labels of the drafted positions: [anchors, size - 1, vocabulary]; zero past the answer."""
    at = anchors[:, None] - sequence.prompt + torch.arange(size - 1)
    inside = at < len(label)
    gathered: Tensor = label[at.clamp(max=len(label) - 1)] * inside[..., None]
    return gathered


def loss_vocabulary(frequent: Tensor, sequences: list[Sequence], vocab: int, generator: torch.Generator) -> Tensor:
    """Return the ids the loss is taken over: frequent ones, the batch's own, and random others.

    The whole vocabulary would cost more than all layers together.
    """
    random = torch.randint(vocab, (_RANDOM_NEGATIVES,), generator=generator)
    chosen: Tensor = torch.unique(torch.cat([frequent, random, *(s.ids[s.prompt :] for s in sequences)]))
    return chosen


def loss(model: DFlash, blocks: Blocks, vocabulary: Tensor) -> tuple[Tensor, list[float]]:
    """Return the weighted loss over the drafted positions and the share of right tokens at each of them."""
    head = model.embedding[vocabulary]
    labels = torch.cat(
        [
            block_labels(soft_labels(s, head, vocabulary), s, a, blocks.size)
            for s, a in zip(blocks.sequences, blocks.anchors, strict=True)
        ]
    )
    logits = model(blocks) @ head.T
    live = labels.sum(dim=-1) > 0
    weight = torch.exp(-torch.arange(blocks.size - 1) / DECAY) * live
    entropy = -(labels * logits.log_softmax(dim=-1)).sum(dim=-1)
    right = (logits.argmax(-1) == labels.argmax(-1)) & live
    shares = right.sum(0) / live.sum(0).clamp(min=1)
    return (entropy * weight).sum() / weight.sum().clamp(min=1e-6), shares.tolist()


@torch.no_grad()
def draft(model: DFlash, blocks: Blocks, vocabulary: Tensor | None = None) -> Drafted:
    """Return the tokens each block drafts over the whole vocabulary, or over part of it: [anchors, BLOCK - 1]."""
    states: Tensor = model(blocks)
    head = model.embedding if vocabulary is None else model.embedding[vocabulary]
    return best_tokens(states @ head.T, vocabulary)
