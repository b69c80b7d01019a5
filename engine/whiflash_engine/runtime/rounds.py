"""One round for the whole batch, top to bottom: close the last round, route, write context, propose.

Runs once per engine step, after the target has verified the drafts of the step before. Rows of rejected
tokens are gone by then (vLLM's unpadded drafter batch), so every row here is verified.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from whiflash_engine.config import ROUTER_KEY
from whiflash_engine.drafters.base import Drafter, RoundBatch
from whiflash_engine.routing.base import Router, Signals
from whiflash_engine.trace import NO_DRAFTER, RoundRecord
from whiflash_engine.trace_store import TRACE_KEY, TraceStore


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One request of the batch, in batch order, as this step left it."""

    req_id: str
    sampled: int
    """Tokens the step emitted; 0 while the prompt is still being processed."""
    output_tokens: int
    """Output tokens so far, this step's included."""
    context_tokens: int
    """Verified tokens in the KV cache."""
    extra_args: Mapping[str, object]
    """The request's ``SamplingParams.extra_args``."""
    entropy: float | None


@dataclass(slots=True)
class _OpenRequest:
    """What is remembered of a request between rounds."""

    router: Router
    trace_id: str
    rounds: int = 0
    drafter: str | None = None
    record: RoundRecord | None = None


@dataclass
class RoundRunner:
    """Runs rounds over ``drafters`` with ``routers``; keeps one record per request and round in ``traces``."""

    drafters: Mapping[str, Drafter]
    routers: Mapping[str, Router]
    default_router: str
    max_model_len: int
    traces: TraceStore
    open: dict[str, _OpenRequest] = field(default_factory=dict)

    def run_round(self, requests: Sequence[StepRequest], batch: RoundBatch, verify_s: float) -> list[list[int]]:
        """Return the draft tokens of every request (an empty list: nothing drafted)."""
        self._close_records(requests, verify_s)
        started = perf_counter()
        choices = [self._route(request) for request in requests]
        routed = perf_counter()
        self._write_context(batch, choices)
        drafts: list[list[int]] = [[] for _ in requests]
        for name, drafter in self.drafters.items():
            chosen = [index for index, choice in enumerate(choices) if choice == name]
            if chosen:
                for index, tokens in zip(chosen, drafter.propose(batch, chosen).tolist(), strict=True):
                    drafts[index] = tokens
        draft_s = perf_counter() - routed
        self._open_records(requests, choices, drafts, draft_s=draft_s, router_s=routed - started)
        return drafts

    def needs_entropy(self, req_id: str, extra_args: Mapping[str, object]) -> bool:
        """Whether the request's router looks at the target's entropy."""
        return self._opened(req_id, extra_args).router.needs_entropy

    def forget(self, req_id: str) -> None:
        """Drop a finished, aborted or preempted request; its closed records stay in ``traces``."""
        self.open.pop(req_id, None)

    def _opened(self, req_id: str, extra_args: Mapping[str, object]) -> _OpenRequest:
        state = self.open.get(req_id)
        if state is None:
            name = str(extra_args.get(ROUTER_KEY, self.default_router))
            router = self.routers.get(name) or self.routers[self.default_router]
            state = _OpenRequest(router, str(extra_args.get(TRACE_KEY, req_id)))
            self.open[req_id] = state
        return state

    def _route(self, request: StepRequest) -> str | None:
        """Return the drafter for this request's next round, or ``None`` for no draft."""
        state = self._opened(request.req_id, request.extra_args)
        if request.sampled == 0:
            return None
        # The token just sampled sits at position context_tokens; drafts follow it.
        eligible = tuple(
            name
            for name, drafter in self.drafters.items()
            if request.context_tokens + 1 + drafter.max_tokens <= min(drafter.max_positions, self.max_model_len)
        )
        return state.router.choose(Signals(request.entropy), eligible)

    def _write_context(self, batch: RoundBatch, choices: Sequence[str | None]) -> None:
        """Keep every drafter in step: all verified rows, except the last one of those about to draft."""
        for name, drafter in self.drafters.items():
            rows = batch.rows
            drafting = [index for index, choice in enumerate(choices) if choice == name]
            if drafting:
                keep = torch.ones(len(rows), dtype=torch.bool, device=rows.positions.device)
                keep[batch.last_rows[drafting]] = False
                rows = rows.take(keep.nonzero().squeeze(1))
            if len(rows):
                drafter.write_context(rows)

    def _close_records(self, requests: Sequence[StepRequest], verify_s: float) -> None:
        for request in requests:
            state = self._opened(request.req_id, request.extra_args)
            record, state.record = state.record, None
            if record is not None and request.sampled:
                record.accepted = request.sampled - 1
                record.verify_s = verify_s
                self.traces.add(state.trace_id, record)

    def _open_records(
        self,
        requests: Sequence[StepRequest],
        choices: Sequence[str | None],
        drafts: Sequence[list[int]],
        *,
        draft_s: float,
        router_s: float,
    ) -> None:
        for request, choice, tokens in zip(requests, choices, drafts, strict=True):
            if request.sampled == 0:
                continue
            state = self._opened(request.req_id, request.extra_args)
            drafter = choice or NO_DRAFTER
            state.record = RoundRecord(
                request_id=state.trace_id,
                round=state.rounds,
                position=request.output_tokens,
                drafter=drafter,
                router=state.router.name,
                signal=Signals(request.entropy).to_dict(),
                drafted=len(tokens),
                switched=state.drafter is not None and state.drafter != drafter,
                draft_s=draft_s,
                router_s=router_s,
            )
            state.rounds += 1
            state.drafter = drafter
