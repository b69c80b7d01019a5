"""The EAGLE-3 head: one layer on [norm(embedding); norm(fused states)], trained on its own unrolled steps.

The computation is that of vLLM's ``llama_eagle3.py``: the residual is taken before the norm, and states go
on to the next step before the last norm. A *chain* is one round: it starts at an answer token ``s`` of the
target, and its step ``k`` drafts the token at position ``prompt + s + 1 + k``.

Row ``t`` of the head pairs the target's state at ``t`` with the token at ``t + 1``. Step 0 attends to the
rows of the accepted prefix; step ``k`` to that same prefix and to the chain's own earlier steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whiflash_engine.training.features import EAGLE3_TAPS, Sequence
from whiflash_engine.training.labels import positions_in, soft_labels
from whiflash_engine.training.layers import (
    DROPOUT,
    Drafted,
    Mlp,
    Projections,
    Shape,
    best_tokens,
    grouped_attention,
)

STEP_DECAY = 0.9
LATE_SHARE = 0.5
_RANDOM_NEGATIVES = 768


class Midlayer(nn.Module):
    """The head's only decoder layer; its attention reads two states side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = Projections(shape, 2 * shape.hidden, qk_norm=False)
        self.mlp = Mlp(shape)

    def mix(self, embeds: Tensor, states: Tensor) -> Tensor:
        """Return the attention input [rows, 2 * hidden]."""
        mixed = torch.cat([self.input_layernorm(embeds), self.hidden_norm(states)], dim=-1)
        return F.dropout(mixed, DROPOUT, self.training)


@dataclass
class Chains:
    """All chains of a batch of sequences, packed. ``states`` [chains, hidden] is the newest step's output."""

    sequences: list[Sequence]
    counts: list[int]
    states: Tensor
    positions: Tensor
    contexts: list[tuple[Tensor, Tensor]]
    biases: list[Tensor]
    own: list[tuple[Tensor, Tensor]]
    kept: Tensor
    """Which of the chains that were started are still here: indices [chains]."""

    def keep(self, share: float, generator: torch.Generator) -> None:
        """Go on with a random ``share`` of the chains; late steps count less and cost as much."""
        is_kept = torch.rand(len(self.states), generator=generator) < share
        self.biases = [b[k] for b, k in zip(self.biases, torch.split(is_kept, self.counts), strict=True)]
        self.counts = [len(bias) for bias in self.biases]
        self.own = [(keys[is_kept], values[is_kept]) for keys, values in self.own]
        self.states, self.positions = self.states[is_kept], self.positions[is_kept]
        self.kept = self.kept[is_kept]


class Eagle3(nn.Module):
    """Trainable EAGLE-3 head; ``embedding`` [vocab, hidden] is the target's and stays as it is."""

    embedding: Tensor
    vocabulary: Tensor

    def __init__(self, shape: Shape, embedding: Tensor, vocabulary: Tensor) -> None:
        super().__init__()
        self.fc = nn.Linear(len(EAGLE3_TAPS) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Midlayer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.lm_head = nn.Linear(shape.hidden, len(vocabulary), bias=False)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("vocabulary", vocabulary, persistent=False)

    def _finish(self, mixed: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = residual + self.midlayer.self_attn.o_proj(mixed)
        added: Tensor = self.midlayer.mlp(self.midlayer.post_attention_layernorm(out))
        return out + added

    def start(self, sequences: list[Sequence]) -> Chains:
        """Run step 0 of every chain: keys of all rows, queries of the answer's rows only."""
        attention = self.midlayer.self_attn
        fused = self.fc(torch.cat([s.select(EAGLE3_TAPS)[:-2] for s in sequences]))
        embeds = self.embedding[torch.cat([s.ids[1:-1] for s in sequences])]
        positions = torch.cat([torch.arange(s.length - 2) for s in sequences])
        mixed = self.midlayer.mix(embeds, fused)
        keys, values = attention.keys_values(mixed, positions)
        rows = [s.length - 2 for s in sequences]
        contexts = list(zip(torch.split(keys, rows), torch.split(values, rows), strict=True))
        counts = [s.length - 1 - s.prompt for s in sequences]
        is_chain = torch.cat([torch.arange(s.length - 2) >= s.prompt - 1 for s in sequences])
        biases = [
            torch.zeros(n, r).masked_fill(torch.arange(r) > torch.arange(n)[:, None] + r - n, -torch.inf)
            for n, r in zip(counts, rows, strict=True)
        ]
        everyone = torch.arange(sum(counts))
        chains = Chains(sequences, counts, fused[is_chain], positions[is_chain], contexts, biases, [], everyone)
        queries = attention.queries(mixed[is_chain], chains.positions)
        chains.states = self._finish(self._attend(chains, queries), chains.states)
        return chains

    def step(self, chains: Chains, tokens: Tensor) -> None:
        """Run the next step of every chain on ``tokens`` [chains], the tokens drafted last."""
        attention = self.midlayer.self_attn
        chains.positions = chains.positions + 1
        mixed = self.midlayer.mix(self.embedding[tokens], chains.states)
        chains.own.append(attention.keys_values(mixed, chains.positions))
        queries = attention.queries(mixed, chains.positions)
        chains.states = self._finish(self._attend(chains, queries), chains.states)

    def _attend(self, chains: Chains, queries: Tensor) -> Tensor:
        own = None
        if chains.own:
            own = tuple(torch.stack([pair[i] for pair in chains.own], dim=1) for i in (0, 1))
        outs = []
        at = 0
        for count, context, bias in zip(chains.counts, chains.contexts, chains.biases, strict=True):
            mine = (own[0][at : at + count], own[1][at : at + count]) if own else None
            outs.append(grouped_attention(queries[at : at + count, None], context, bias, mine)[:, 0])
            at += count
        return torch.cat(outs)

    def logits(self, states: Tensor, part: Tensor | None = None) -> Tensor:
        """Return logits over the draft vocabulary, or over the rows ``part`` of it."""
        weight = self.lm_head.weight if part is None else self.lm_head.weight[part]
        normed: Tensor = self.norm(states)
        return normed @ weight.T


def teacher_tokens(sequences: list[Sequence], step: int) -> Tensor:
    """Return what chain ``s`` reads in ``step`` >= 1: token ``prompt + s + step``, 0 past the end."""
    tokens = []
    for s in sequences:
        padded = torch.cat([s.ids, torch.zeros(step, dtype=torch.long)])
        tokens.append(padded[s.prompt + step : s.length - 1 + step])
    return torch.cat(tokens)


def _step_labels(labels: list[Tensor], step: int) -> Iterator[Tensor]:
    """Shift labels so that row ``s`` is chain ``s``'s label in ``step``; all-zero rows carry no loss."""
    for label in labels:
        pad = min(step, len(label))
        yield torch.cat([label[pad:], label.new_zeros(pad, label.shape[1])])


def loss_part(model: Eagle3, frequent: Tensor, sequences: list[Sequence], generator: torch.Generator) -> Tensor:
    """Return rows of the draft vocabulary for the loss: frequent tokens, the batch's own, random others."""
    tokens = torch.cat([frequent, *(s.ids[s.prompt :] for s in sequences)])
    rows = positions_in(model.vocabulary, tokens)
    random = torch.randint(len(model.vocabulary), (_RANDOM_NEGATIVES,), generator=generator)
    part: Tensor = torch.unique(torch.cat([rows[rows >= 0], random]))
    return part


def loss(
    model: Eagle3,
    sequences: list[Sequence],
    head: Tensor,
    steps: int,
    generator: torch.Generator | None = None,
    part: Tensor | None = None,
) -> tuple[Tensor, list[float]]:
    """Return the training-time-test loss and the share of right tokens in each step.

    ``head`` holds the target's output rows of the draft vocabulary: [draft vocabulary, hidden]. With a
    ``generator`` only a random ``LATE_SHARE`` of the chains goes past the first two steps. ``part`` (see
    :func:`loss_part`) limits the loss to some of the draft vocabulary.
    """
    if part is None:
        part = torch.arange(len(model.vocabulary))
    labels = [soft_labels(s, head[part], model.vocabulary[part]) for s in sequences]
    chains = model.start(sequences)
    total = chains.states.new_zeros(())
    right = []
    for step in range(steps):
        if step == 2 and generator is not None:
            chains.keep(LATE_SHARE, generator)
        if step:
            model.step(chains, teacher_tokens(sequences, step)[chains.kept])
        label = torch.cat(list(_step_labels(labels, step)))[chains.kept]
        live = label.sum(dim=-1) > 0
        logits = model.logits(chains.states[live], part)
        label = label[live]
        total = total - STEP_DECAY**step * (label * logits.log_softmax(dim=-1)).sum() / max(len(label), 1)
        right.append((logits.argmax(-1) == label.argmax(-1)).float().mean().item())
    return total, right


@torch.no_grad()
def draft(model: Eagle3, sequences: list[Sequence], steps: int) -> Drafted:
    """Return the tokens each chain drafts by itself: [chains, steps]."""
    chains = model.start(sequences)
    drafted: list[Drafted] = []
    for step in range(steps):
        if step:
            model.step(chains, drafted[-1].tokens)
        drafted.append(best_tokens(model.logits(chains.states), model.vocabulary))
    return Drafted(*(torch.stack(columns, dim=1) for columns in zip(*drafted, strict=True)))
