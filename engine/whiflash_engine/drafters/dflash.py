"""DFlash: a block-diffusion drafter; one pass drafts the whole block.

Model files, loading and the context write are vLLM's (``qwen3_dflash.py``, ``DFlashProposer``). A round asks
it for the chosen requests alone: queries are the sampled token and ``max_tokens`` masks, attending to the
context rows and to each other. Source: DFlash (arXiv 2602.06036).
"""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.forward_context import set_forward_context

from whiflash_engine.drafters.attention import layer_metadata, slots_of, uniform_queries
from whiflash_engine.drafters.base import ContextRows, RoundBatch, position_limit
from whiflash_engine.drafters.sampling import greedy_tokens


class DFlashDrafter:
    """``loader`` is the ``DFlashProposer`` that holds the model; ``feature_columns`` its part of the features."""

    name = "dflash"

    def __init__(
        self, loader: Any, *, max_tokens: int, tap_layers: tuple[int, ...], feature_columns: torch.Tensor
    ) -> None:
        self.loader = loader
        self.max_tokens = max_tokens
        self.tap_layers = tap_layers
        self.feature_columns = feature_columns
        self.max_positions = position_limit(loader)

    def write_context(self, rows: ContextRows) -> None:
        """Write K and V of the rows in every layer: projections of the fused target features."""
        model = self.loader.model
        model.precompute_and_store_context_kv(
            model.combine_hidden_states(rows.features[:, self.feature_columns]), rows.positions, rows.slots
        )

    def propose(self, batch: RoundBatch, chosen: Sequence[int]) -> torch.Tensor:
        """Draft ``max_tokens`` tokens in one pass, greedily. The last row's context is written here."""
        requests = torch.tensor(chosen, device=batch.last_rows.device)
        last = batch.rows.take(batch.last_rows[requests])
        self.write_context(last)
        queries = 1 + self.max_tokens
        tokens = last.next_token_ids.new_full((len(chosen), queries), self.loader.parallel_drafting_token_id)
        tokens[:, 0] = last.next_token_ids
        offsets = torch.arange(1, queries + 1, device=last.positions.device)
        positions = last.positions[:, None] + offsets
        block_table = batch.block_table[requests]
        attention = uniform_queries(
            seq_lens=batch.seq_lens[requests] + queries,
            block_table=block_table,
            slots=slots_of(block_table, positions, batch.block_size).flatten(),
            queries=queries,
            causal=self.loader.dflash_causal,
        )
        hidden = self._forward(tokens.flatten(), positions.flatten(), attention)
        hidden = hidden.view(len(chosen), queries, -1)[:, 1:].flatten(0, 1)
        return greedy_tokens(self.loader.model, hidden).view(len(chosen), self.max_tokens)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: Any) -> torch.Tensor:
        per_layer = layer_metadata(self.loader, attention, 0)
        with set_forward_context(
            per_layer,
            self.loader.vllm_config,
            num_tokens=tokens.shape[0],
            slot_mapping=dict.fromkeys(per_layer, attention.slot_mapping),
        ):
            hidden: torch.Tensor = self.loader.model(input_ids=tokens, positions=positions, inputs_embeds=None)
        return hidden
