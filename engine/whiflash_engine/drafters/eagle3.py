"""EAGLE-3: an autoregressive head of one layer on [embedding of the next token; fused target features].

Model files, loading and attention groups are vLLM's (``llama_eagle3.py``, ``EagleProposer``). What differs
is the round: context rows are written K/V only, and the full layer runs on one row per request and step.
Source: EAGLE-3 (arXiv 2503.01840); KV-only writes: WhiFlash (arXiv 2606.07710).
"""

from collections.abc import Sequence

import torch

from whiflash_engine.drafters.base import ContextRows, RoundBatch
from whiflash_engine.drafters.hosted import HostedDrafter, slots_of, uniform_queries


class Eagle3Drafter(HostedDrafter):
    """Drafts up to ``max_tokens`` tokens one after another."""

    name = "eagle3"

    def write_context(self, rows: ContextRows) -> None:
        """Write K and V of the rows: embedding, fused feature, two norms, the projections and RoPE."""
        layer = self.loader.model.model.layers[0]
        attention = layer.self_attn
        embeds = layer.input_layernorm(self.loader.model.model.embed_tokens(rows.next_token_ids))
        hidden, _ = layer._residual_norm(hidden_states=self.fuse(rows.features))
        qkv, _ = attention.qkv_proj(torch.cat([embeds, hidden], dim=-1))
        _, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        kv_shape = (len(rows), attention.num_kv_heads, attention.head_dim)
        if hasattr(attention, "k_norm"):
            k = attention.k_norm(k.reshape(kv_shape)).view(k.shape)
        k, _ = attention.rotary_emb(rows.positions, k.contiguous(), None)
        attention.attn.impl.do_kv_cache_update(
            attention.attn,
            k.view(kv_shape),
            v.contiguous().view(kv_shape),
            attention.attn.kv_cache,
            rows.slots,
        )

    def propose(self, batch: RoundBatch, chosen: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return ``lengths`` draft tokens for each chosen request: as many steps as the longest draft has."""
        requests = torch.tensor(chosen, device=batch.last_rows.device)
        last = batch.rows.take(batch.last_rows[requests])
        block_table = batch.block_table[requests]
        seq_lens = batch.seq_lens[requests]
        tokens, positions, hidden = last.next_token_ids, last.positions, self.fuse(last.features)
        drafts = []
        for step in range(max(lengths)):
            attention = uniform_queries(
                seq_lens=seq_lens + step,
                block_table=block_table,
                slots=slots_of(block_table, positions[:, None], batch.block_size).squeeze(1),
                queries=1,
                causal=True,
            )
            outputs, hidden = self.forward(
                attention, step, input_ids=tokens, positions=positions, hidden_states=hidden
            )
            tokens = self.greedy_tokens(outputs)
            drafts.append(tokens)
            positions = positions + 1
        rows: list[list[int]] = torch.stack(drafts, dim=1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]
