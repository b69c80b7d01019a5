"""EAGLE-3: an autoregressive head of one layer on [embedding of the next token; fused target features].

Model files, loading and attention groups are vLLM's (``llama_eagle3.py``, ``EagleProposer``). What differs
is the round: context rows are written K/V only, and the full layer runs on one row per request and step.
Source: EAGLE-3 (arXiv 2503.01840); KV-only writes: WhiFlash (arXiv 2606.07710).
"""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.forward_context import set_forward_context

from whiflash_engine.drafters.attention import layer_metadata, slots_of, uniform_queries
from whiflash_engine.drafters.base import ContextRows, RoundBatch, position_limit
from whiflash_engine.drafters.sampling import greedy_tokens


class Eagle3Drafter:
    """``loader`` is the ``EagleProposer`` that holds the model; ``feature_columns`` its part of the features."""

    name = "eagle3"

    def __init__(
        self, loader: Any, *, max_tokens: int, tap_layers: tuple[int, ...], feature_columns: torch.Tensor
    ) -> None:
        self.loader = loader
        self.max_tokens = max_tokens
        self.tap_layers = tap_layers
        self.feature_columns = feature_columns
        self.max_positions = position_limit(loader)

    def write_context(self, rows: ContextRows) -> None:
        """Write K and V of the rows: embedding, fused feature, two norms, the projections and RoPE."""
        layer = self.loader.model.model.layers[0]
        attention = layer.self_attn
        embeds = layer.input_layernorm(self.loader.model.model.embed_tokens(rows.next_token_ids))
        hidden, _ = layer._residual_norm(hidden_states=self._fuse(rows.features))
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

    def propose(self, batch: RoundBatch, chosen: Sequence[int]) -> torch.Tensor:
        """Draft ``max_tokens`` tokens one after another, greedily."""
        requests = torch.tensor(chosen, device=batch.last_rows.device)
        last = batch.rows.take(batch.last_rows[requests])
        block_table = batch.block_table[requests]
        tokens, positions, hidden = last.next_token_ids, last.positions, self._fuse(last.features)
        seq_lens = batch.seq_lens[requests].clone()
        drafts = []
        for step in range(self.max_tokens):
            slots = slots_of(block_table, positions[:, None], batch.block_size).squeeze(1)
            attention = uniform_queries(
                seq_lens=seq_lens, block_table=block_table, slots=slots, queries=1, causal=True
            )
            outputs, hidden = self._forward(tokens, positions, hidden, attention, step)
            tokens = greedy_tokens(self.loader.model, outputs)
            drafts.append(tokens)
            positions = positions + 1
            seq_lens = seq_lens + 1
        return torch.stack(drafts, dim=1)

    def _fuse(self, features: torch.Tensor) -> torch.Tensor:
        fused: torch.Tensor = self.loader.model.combine_hidden_states(features[:, self.feature_columns])
        return fused

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor, attention: Any, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        per_layer = layer_metadata(self.loader, attention, step)
        with set_forward_context(
            per_layer,
            self.loader.vllm_config,
            num_tokens=tokens.shape[0],
            slot_mapping=dict.fromkeys(per_layer, attention.slot_mapping),
        ):
            outputs, hidden = self.loader.model(
                input_ids=tokens, positions=positions, hidden_states=hidden, inputs_embeds=None
            )
        return outputs, hidden
