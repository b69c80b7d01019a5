"""One round for the whole batch, top to bottom: close the last round, route, catch up, propose.

Runs once per engine step, after the target has verified the drafts of the step before. Rows of rejected
tokens are gone by then (vLLM's unpadded drafter batch), so every row here is verified.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from whiflash_engine.cache import Deferred, join_rows
from whiflash_engine.config import ROUTER_KEY
from whiflash_engine.drafters.base import ContextRows, Drafter, RoundBatch
from whiflash_engine.routing.base import Choice, Router, Signals
from whiflash_engine.routing.costs import RoundCosts
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
    entropy: float | None = None
    hidden: torch.Tensor | None = None
    """[hidden] the target's final hidden state at the last accepted position, if a router asked for it."""
    verified_drafts: int = 0
    """Draft tokens of the last round that the target was given; grammar and token budget may cut a draft."""


@dataclass(slots=True)
class _Ongoing:
    """What is remembered of a request between rounds."""

    router: Router
    trace_id: str
    rounds: int = 0
    drafter: str | None = None
    record: RoundRecord | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Whom to ask for a draft for one request. ``choice``: whose draft the target is to verify, if any."""

    asked: tuple[Choice, ...] = ()
    choice: Choice | None = None

    def asks(self, drafter: str) -> Choice | None:
        return next((choice for choice in self.asked if choice.drafter == drafter), None)


_NOTHING = _Plan()


@dataclass
class RoundRunner:
    """Runs rounds over ``drafters`` with ``routers``; keeps one record per request and round in ``traces``."""

    drafters: Mapping[str, Drafter]
    routers: Mapping[str, Router]
    default_router: str
    max_model_len: int
    block_size: int
    """Tokens of a KV block: prefix caching shares full ones."""
    traces: TraceStore
    costs: RoundCosts = field(default_factory=RoundCosts)
    """Is told what every phase took; the cost router asks it."""
    ongoing: dict[str, _Ongoing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deferred = {name: Deferred() for name, drafter in self.drafters.items() if drafter.tap_layers}
        self._last_end: float | None = None

    def run_round(
        self, requests: Sequence[StepRequest], batch: RoundBatch, *, verify_s: float, signal_s: float = 0.0
    ) -> list[list[int]]:
        """Return the draft tokens of every request (an empty list: nothing drafted).

        ``verify_s`` and ``signal_s``: seconds the target took, and the computing of the routers' signals.
        """
        started = perf_counter()
        self._note_verify(requests, started)
        self._close_records(requests, verify_s)
        drafting = sum(request.sampled > 0 for request in requests)
        plans = [self._route(request, index, batch, drafting) for index, request in enumerate(requests)]
        routed = perf_counter()
        caught_up, rows = self._catch_up(requests, batch, plans)
        written = perf_counter()
        if rows and not any(_is_prompt_step(request) for request in requests):
            self.costs.add_writes(rows, written - routed)
        proposed = self._propose(batch, plans)
        self._last_end = perf_counter()
        seconds = {
            "router": routed - started + signal_s,
            "catch_up": written - routed,
            "draft": self._last_end - written,
        }
        self._open_records(requests, plans, proposed, caught_up, seconds)
        return [
            drafts[plan.choice.drafter] if plan.choice else []
            for plan, drafts in zip(plans, proposed, strict=True)
        ]

    def needs(self, req_id: str, extra_args: Mapping[str, object]) -> frozenset[str]:
        """Return the signals that the request's router looks at."""
        return self._opened(req_id, extra_args).router.needs

    def forget(self, req_id: str) -> None:
        """Drop a finished or aborted request; its closed records stay in ``traces``."""
        state = self.ongoing.pop(req_id, None)
        if state is not None:
            state.router.forget(req_id)
        self._forget_rows(req_id)

    def preempt(self, req_id: str) -> None:
        """Drop what a request that lost its cache can no longer use: deferred rows and the round under way."""
        if req_id in self.ongoing:
            self.ongoing[req_id].record = None
        self._forget_rows(req_id)

    def _forget_rows(self, req_id: str) -> None:
        for deferred in self.deferred.values():
            deferred.forget(req_id)

    def _opened(self, req_id: str, extra_args: Mapping[str, object]) -> _Ongoing:
        state = self.ongoing.get(req_id)
        if state is None:
            name = str(extra_args.get(ROUTER_KEY, self.default_router))
            router = self.routers.get(name) or self.routers[self.default_router]
            state = _Ongoing(router, str(extra_args.get(TRACE_KEY, req_id)))
            self.ongoing[req_id] = state
        return state

    def _route(self, request: StepRequest, index: int, batch: RoundBatch, drafting: int) -> _Plan:
        """Return whom to ask for this request's next round."""
        state = self._opened(request.req_id, request.extra_args)
        if request.sampled == 0:
            return _NOTHING
        offers: dict[str, int] = {}
        for name in state.router.drafters:
            drafter = self.drafters[name]
            # The token just sampled sits at position context_tokens; drafts follow it.
            fits = request.context_tokens + 1 + drafter.max_tokens <= min(
                drafter.max_positions, self.max_model_len
            )
            if fits and (tokens := drafter.offers(batch, index)):
                offers[name] = tokens
        deferred = {name: rows.count(request.req_id) for name, rows in self.deferred.items()}
        if state.router.surveys:
            return _Plan(tuple(Choice(name, tokens) for name, tokens in offers.items()))
        signals = Signals(request.entropy, request.hidden, deferred, drafting, request.req_id)
        choice = state.router.choose(signals, offers)
        return _Plan((choice,), choice) if choice else _NOTHING

    def _catch_up(
        self, requests: Sequence[StepRequest], batch: RoundBatch, plans: Sequence[_Plan]
    ) -> tuple[list[int], int]:
        """Write what is due to each drafter, defer the rest.

        Return how many deferred rows each request caught up, and how many rows were written in all.

        The last row of a request that is about to draft is left to its drafter, which runs its layers on it.
        """
        ends = [last + 1 for last in batch.last_rows.tolist()]
        caught_up, written = [0] * len(requests), 0
        for name, deferred in self.deferred.items():
            drafter = self.drafters[name]
            due: list[ContextRows] = []
            for index, request in enumerate(requests):
                start, end = (ends[index - 1] if index else 0), ends[index]
                drafting = plans[index].asks(name) is not None
                # Past its positions a drafter never drafts again, and its RoPE table ends.
                reach = start + max(0, drafter.max_positions - (request.context_tokens - (end - start)))
                rows = batch.rows.between(start, min(end - drafting, reach))
                if drafting or self._due_now(request, end - start):
                    caught_up[index] += deferred.count(request.req_id) if drafting else 0
                    due += [*deferred.take(request.req_id), rows]
                else:
                    deferred.put(request.req_id, rows)
            due = [rows for rows in due if len(rows)]
            if due:
                joined = join_rows(due)
                written += len(joined)
                drafter.write_context(joined)
        return caught_up, written

    def _due_now(self, request: StepRequest, rows: int) -> bool:
        """Whether rows must be written though their drafter does not draft: prompt rows, or a block is full."""
        before = request.context_tokens - rows
        return _is_prompt_step(request) or request.context_tokens // self.block_size > before // self.block_size

    def _propose(self, batch: RoundBatch, plans: Sequence[_Plan]) -> list[dict[str, list[int]]]:
        """Return each request's drafts by drafter."""
        drafts: list[dict[str, list[int]]] = [{} for _ in plans]
        for name, drafter in self.drafters.items():
            chosen = {i: asked.tokens for i, plan in enumerate(plans) if (asked := plan.asks(name))}
            if not chosen:
                continue
            started = perf_counter()
            proposed = drafter.propose(batch, list(chosen), list(chosen.values()))
            self.costs.add_draft(name, len(chosen), max(chosen.values()), perf_counter() - started)
            for index, tokens in zip(chosen, proposed, strict=True):
                drafts[index][name] = tokens
        return drafts

    def _note_verify(self, requests: Sequence[StepRequest], started: float) -> None:
        """Tell the costs what a pass over drafts took, with what the engine did between two passes."""
        under_way = [self._opened(request.req_id, request.extra_args).record for request in requests]
        if self._last_end is not None and all(record is not None for record in under_way):
            rows = sum(1 + request.verified_drafts for request in requests)
            self.costs.add_verify(rows, started - self._last_end)

    def _close_records(self, requests: Sequence[StepRequest], verify_s: float) -> None:
        for request in requests:
            state = self._opened(request.req_id, request.extra_args)
            record, state.record = state.record, None
            if record is not None and request.sampled:
                record.drafted = request.verified_drafts
                record.accepted = request.sampled - 1
                record.verify_s = verify_s
                state.router.observe(record)
                self.traces.add(state.trace_id, record)

    def _open_records(
        self,
        requests: Sequence[StepRequest],
        plans: Sequence[_Plan],
        proposed: Sequence[dict[str, list[int]]],
        caught_up: Sequence[int],
        seconds: dict[str, float],
    ) -> None:
        for request, plan, drafts, rows in zip(requests, plans, proposed, caught_up, strict=True):
            if request.sampled == 0:
                continue
            state = self._opened(request.req_id, request.extra_args)
            drafter = plan.choice.drafter if plan.choice else NO_DRAFTER
            state.record = RoundRecord(
                request_id=request.req_id,
                round=state.rounds,
                position=request.output_tokens,
                drafter=drafter,
                router=state.router.name,
                signal=_signal(request, plan.choice),
                drafted=len(drafts.get(drafter, ())),
                switched=state.drafter is not None and state.drafter != drafter,
                catch_up_rows=rows,
                router_s=seconds["router"],
                catch_up_s=seconds["catch_up"],
                draft_s=seconds["draft"],
                survey={} if plan.choice else drafts,
            )
            state.rounds += 1
            state.drafter = drafter


def _is_prompt_step(request: StepRequest) -> bool:
    """Whether the step processed prompt rows of a request that had no output before."""
    return request.sampled == request.output_tokens


def _signal(request: StepRequest, choice: Choice | None) -> dict[str, float]:
    """Return what the router went by, as the round record keeps it."""
    known = {} if request.entropy is None else {"entropy": request.entropy}
    return known | dict(choice.notes or {}) if choice else known
