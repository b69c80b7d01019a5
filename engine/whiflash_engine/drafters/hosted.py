"""What drafters have in common whose model, layers and attention groups a vLLM proposer holds."""

from typing import Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from whiflash_engine.drafters.base import RoundBatch


class HostedDrafter:
    """``loader`` is the vLLM proposer; ``feature_columns`` are this drafter's columns of the taps' union."""

    def __init__(
        self, loader: Any, *, max_tokens: int, tap_layers: tuple[int, ...], feature_columns: torch.Tensor
    ) -> None:
        self.loader = loader
        self.max_tokens = max_tokens
        self.tap_layers = tap_layers
        self.feature_columns = feature_columns
        config = loader.draft_model_config
        window = config.max_model_len
        self.max_positions = int(min(window, getattr(config.hf_config, "max_position_embeddings", window)))
        """The drafter's window, or its RoPE table where that is shorter."""

    def offers(self, batch: RoundBatch, index: int) -> int:
        """Return ``max_tokens``: a model can always draft."""
        return self.max_tokens

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Return [rows, hidden] of the target's features [rows, taps * hidden]."""
        fused: torch.Tensor = self.loader.model.combine_hidden_states(features[:, self.feature_columns])
        return fused

    def forward(self, attention: CommonAttentionMetadata, step: int, **inputs: torch.Tensor) -> Any:
        """Run the model on the queries that ``attention`` describes; ``step`` counts the passes of a round."""
        _, per_layer = self.loader.build_per_group_and_layer_attn_metadata(attention, draft_index=step)
        with set_forward_context(
            per_layer,
            self.loader.vllm_config,
            num_tokens=attention.num_actual_tokens,
            slot_mapping=dict.fromkeys(per_layer, attention.slot_mapping),
        ):
            return self.loader.model(inputs_embeds=None, **inputs)

    def greedy_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the best target id per row of ``hidden`` [rows, width], as [rows] int32.

        Drafts are greedy: exact under any sampling of the target. The argmax is taken in the draft vocabulary
        and mapped by its offsets; vLLM's ``compute_logits`` would first scatter every row into the target's.
        """
        model = self.loader.model
        best: torch.Tensor = model.logits_processor(model.lm_head, hidden).argmax(dim=-1)
        if model.draft_id_to_target_id is not None:
            best = best + model.draft_id_to_target_id[best]
        return best.int()


def slots_of(block_table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the KV slots of ``positions`` [requests, n] under ``block_table`` [requests, blocks]."""
    blocks = torch.gather(block_table.long(), 1, positions // block_size)
    return blocks * block_size + positions % block_size


def uniform_queries(
    *, seq_lens: torch.Tensor, block_table: torch.Tensor, slots: torch.Tensor, queries: int, causal: bool
) -> CommonAttentionMetadata:
    """Describe ``queries`` query rows per request whose keys reach up to ``seq_lens`` [requests]."""
    requests = seq_lens.shape[0]
    starts_cpu = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts_cpu.to(seq_lens.device),
        query_start_loc_cpu=starts_cpu,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens.cpu(),
        num_reqs=requests,
        num_actual_tokens=requests * queries,
        max_query_len=queries,
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=block_table,
        slot_mapping=slots,
        causal=causal,
    )
