"""What a vLLM model runner does differently with WhiFlash: a mixin over the V1 runners."""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from vllm.config import VllmConfig

from whiflash_engine.drafters.base import ContextRows, RoundBatch
from whiflash_engine.rounds import RoundRunner, StepRequest
from whiflash_engine.routing import RoundCosts, RouterSettings, build_routers, row_entropy
from whiflash_engine.runtime.proposer import RoutedProposer
from whiflash_engine.trace_store import TraceStore


class RoutedRunnerMixin:
    """Goes before ``GPUModelRunner`` or ``CPUModelRunner`` in the bases of a runner."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # type: ignore[call-arg]
        self.drafter = RoutedProposer(vllm_config, device, self)
        config = self.drafter.config
        assert config.router_threshold is not None, "the service resolves the threshold before the core starts"
        settings = RouterSettings(
            entropy_threshold=config.router_threshold,
            hidden=vllm_config.model_config.get_hidden_size(),
            neural=Path(config.neural_router) if config.neural_router else None,
            neural_threshold=config.neural_threshold,
            acceptance=Path(config.acceptance) if config.acceptance else None,
        )
        costs = RoundCosts()
        self.rounds = RoundRunner(
            drafters=self.drafter.drafters,
            routers=build_routers(list(self.drafter.drafters), settings, costs),
            default_router=config.router,
            max_model_len=vllm_config.model_config.max_model_len,
            block_size=vllm_config.cache_config.block_size,
            traces=TraceStore(enabled=config.trace),
            costs=costs,
        )
        self._step_started = 0.0
        self._signal_s = 0.0
        self._entropies: torch.Tensor | None = None

    def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...]:
        """Let the target return the union of both drafters' taps."""
        return self.drafter.tap_layers

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        """Let every step through: each request's room is checked per drafter when it is routed."""
        return common_attn_metadata is not None

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the target; drop what is remembered of requests that ended or lost their cache."""
        for req_id in scheduler_output.finished_req_ids:
            self.rounds.forget(req_id)
        for req_id in scheduler_output.preempted_req_ids or ():
            self.rounds.preempt(req_id)
        self._step_started = perf_counter()
        return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Take the target's entropy before the grammar masks its logits, then sample and draft as vLLM does."""
        state: Any = self.execute_model_state  # type: ignore[attr-defined]
        started = perf_counter()
        self._entropies = None
        if state is not None and self._needed("entropy"):
            self._entropies = row_entropy(state.logits)
        self._signal_s = perf_counter() - started
        return super().sample_tokens(grammar_output)  # type: ignore[misc]

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: torch.Tensor,
        sample_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor],
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        """Turn this step's state into rows and requests, and run the round."""
        verify_s = perf_counter() - self._step_started - self._signal_s
        batch = self._round_batch(
            scheduler_output, sampled_token_ids, aux_hidden_states, spec_decode_metadata, common_attn_metadata
        )
        states = sample_hidden_states if self._needed("hidden") else None
        requests = self._step_requests(sampled_token_ids, spec_decode_metadata, batch, states)
        return self.rounds.run_round(requests, batch, verify_s=verify_s, signal_s=self._signal_s)

    def _round_batch(
        self,
        scheduler_output: Any,
        sampled: list[list[int]],
        aux: list[torch.Tensor],
        spec: Any,
        attention: Any,
    ) -> RoundBatch:
        runner: Any = self
        next_tokens = self.drafter.prepare_next_token_ids_cpu(
            sampled, runner.requests, runner.input_batch, scheduler_output.num_scheduled_tokens
        )
        if spec is None:
            rows = torch.arange(scheduler_output.total_num_scheduled_tokens, device=next_tokens.device)
        else:
            attention, rows = self.drafter.prepare_inputs(attention, sampled, spec.num_draft_tokens)
        last_rows = attention.query_start_loc[1:].long() - 1
        following = torch.roll(runner.input_ids.gpu[rows], -1)
        following[last_rows] = next_tokens
        return RoundBatch(
            rows=ContextRows(
                next_token_ids=following,
                positions=runner._get_positions(rows),
                slots=attention.slot_mapping[: len(rows)],
                features=torch.cat([state[rows] for state in aux], dim=-1),
            ),
            last_rows=last_rows,
            seq_lens=attention.seq_lens,
            block_table=attention.block_table_tensor,
            block_size=runner.input_batch.block_table[self.drafter.kv_cache_gid].block_size,
            token_ids=runner.input_batch.token_ids_cpu[: len(sampled)],
            num_tokens=runner.input_batch.num_tokens_no_spec[: len(sampled)],
        )

    def _step_requests(
        self, sampled: list[list[int]], spec: Any, batch: RoundBatch, states: torch.Tensor | None
    ) -> list[StepRequest]:
        """``states`` [logits rows, hidden] are the target's final hidden states, if a router asked for them."""
        runner: Any = self
        rows = _accepted_rows(sampled, spec)
        entropies = self._entropies[rows].tolist() if self._entropies is not None else None
        # The routers' networks are float32 on the CPU: one small copy per step.
        hidden = states[rows].float().cpu() if states is not None else None
        context = batch.seq_lens.tolist()
        verified = spec.num_draft_tokens if spec is not None else [0] * len(sampled)
        requests = []
        for index, req_id in enumerate(runner.input_batch.req_ids):
            state = runner.requests[req_id]
            requests.append(
                StepRequest(
                    req_id=req_id,
                    sampled=len(sampled[index]),
                    output_tokens=len(state.output_token_ids),
                    context_tokens=context[index],
                    extra_args=_extra_args(state),
                    entropy=entropies[index] if entropies else None,
                    hidden=hidden[index] if hidden is not None else None,
                    verified_drafts=verified[index],
                )
            )
        return requests

    def _needed(self, signal: str) -> bool:
        """Whether the router of any request in the batch looks at ``signal``."""
        runner: Any = self
        return any(
            signal in self.rounds.needs(req_id, _extra_args(runner.requests[req_id]))
            for req_id in runner.input_batch.req_ids
        )


def _accepted_rows(sampled: list[list[int]], spec: Any) -> list[int]:
    """Return, per request, the row of the logits that its newest token came from."""
    drafted = spec.num_draft_tokens if spec is not None else [0] * len(sampled)
    rows, start = [], 0
    for tokens, count in zip(sampled, drafted, strict=True):
        rows.append(start + max(len(tokens), 1) - 1)
        start += count + 1
    return rows


def _extra_args(state: Any) -> dict[str, object]:
    parameters = state.sampling_params
    return (parameters.extra_args or {}) if parameters is not None else {}
