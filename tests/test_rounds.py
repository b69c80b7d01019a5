"""The round without an engine: every drafter's context is complete when it matters, and records add up."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whiflash_engine.drafters.base import ContextRows, RoundBatch
from whiflash_engine.rounds import RoundRunner, StepRequest
from whiflash_engine.routing import RoundCosts, RouterSettings, build_routers
from whiflash_engine.trace_store import TraceStore

BLOCK = 4
BLOCKS = 64


class NotingDrafter:
    """Writes nothing, remembers which (slot, next token) rows it was given, and drafts zeros."""

    tap_layers = (1,)

    def __init__(self, name: str, max_tokens: int, max_positions: int = 1000) -> None:
        self.name = name
        self.max_tokens = max_tokens
        self.max_positions = max_positions
        self.written: dict[int, int] = {}

    def write_context(self, rows: ContextRows) -> None:
        for slot, token in zip(rows.slots.tolist(), rows.next_token_ids.tolist(), strict=True):
            assert slot not in self.written, "a row is written once"
            assert slot % (BLOCK * BLOCKS) < self.max_positions, "its RoPE table ends there"
            self.written[slot] = token

    def offers(self, batch: RoundBatch, index: int) -> int:
        return self.max_tokens

    def propose(self, batch: RoundBatch, chosen: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        self.write_context(batch.rows.take(batch.last_rows[list(chosen)]))
        return [[0] * length for length in lengths]


def make_runner(max_model_len: int = 1000, **limits: int) -> tuple[RoundRunner, dict[str, NotingDrafter]]:
    drafters = {
        "eagle3": NotingDrafter("eagle3", 4, limits.get("eagle3", 1000)),
        "dflash": NotingDrafter("dflash", 7, limits.get("dflash", 1000)),
    }
    costs = RoundCosts()
    runner = RoundRunner(
        drafters=drafters,
        routers=build_routers(list(drafters), RouterSettings(entropy_threshold=1.0, hidden=8), costs),
        default_router="entropy",
        max_model_len=max_model_len,
        block_size=BLOCK,
        traces=TraceStore(),
        costs=costs,
    )
    return runner, drafters


def step(
    runner: RoundRunner, states: Sequence[dict[str, object]], rows: Sequence[int], sampled: Sequence[int]
) -> list[list[int]]:
    """Verify ``rows`` new rows of each request and emit ``sampled`` tokens."""
    slots, tokens, last, lens = [], [], [], []
    for index, (state, count) in enumerate(zip(states, rows, strict=True)):
        context = int(state["context"])  # type: ignore[call-overload]
        base = int(state["base"])  # type: ignore[call-overload]
        slots += [base + position for position in range(context, context + count)]
        tokens += [1000 * index + position + 1 for position in range(context, context + count)]
        state["context"] = context + count
        state["output"] = int(state["output"]) + sampled[index]  # type: ignore[call-overload]
        last.append(len(slots) - 1)
        lens.append(context + count)
    batch = RoundBatch(
        rows=ContextRows(
            next_token_ids=torch.tensor(tokens),
            positions=torch.tensor(slots) % (BLOCK * BLOCKS),
            slots=torch.tensor(slots),
            features=torch.zeros(len(slots), 2),
        ),
        last_rows=torch.tensor(last),
        seq_lens=torch.tensor(lens),
        block_table=torch.zeros(len(states), BLOCKS, dtype=torch.int32),
        block_size=BLOCK,
        token_ids=np.zeros((len(states), BLOCK * BLOCKS), dtype=np.int32),
        num_tokens=np.array(lens, dtype=np.int32) + 1,
    )
    requests = [
        StepRequest(
            req_id=str(state["id"]),
            sampled=count,
            output_tokens=int(state["output"]),  # type: ignore[call-overload]
            context_tokens=int(state["context"]),  # type: ignore[call-overload]
            extra_args={"whiflash_router": state["router"]},
            entropy=float(state["entropy"]),  # type: ignore[arg-type]
            verified_drafts=int(state.get("drafted", 0)),  # type: ignore[call-overload]
        )
        for state, count in zip(states, sampled, strict=True)
    ]
    drafts = runner.run_round(requests, batch, verify_s=0.5)
    for state, draft in zip(states, drafts, strict=True):
        state["drafted"] = len(draft)
    return drafts


def request(index: int, router: str, entropy: float = 0.0) -> dict[str, object]:
    return {
        "id": f"r{index}",
        "base": index * BLOCK * BLOCKS,
        "context": 0,
        "output": 0,
        "router": router,
        "entropy": entropy,
    }


def rows_of(state: dict[str, object], index: int, upto: int) -> dict[int, int]:
    """The rows that a drafter always kept in step would have been given."""
    base = int(state["base"])  # type: ignore[call-overload]
    return {base + position: 1000 * index + position + 1 for position in range(upto)}


@settings(max_examples=100, deadline=None)
@given(
    routers=st.lists(st.sampled_from(["off", "eagle3", "dflash", "entropy", "cost"]), min_size=1, max_size=4),
    moves=st.lists(st.lists(st.tuples(st.integers(0, 7), st.floats(0, 3)), min_size=4, max_size=4), max_size=20),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_context_is_complete_whenever_it_can_be_read(
    routers: list[str], moves: list[list[tuple[int, float]]], chunks: list[int]
) -> None:
    """Against a drafter always in step, after any prefill chunks, accepts and switches of several requests:

    a drafter that drafts has every verified row; every drafter has every row of every full block; nobody has
    a row twice, and no request has a block or more of rows deferred.
    """
    runner, drafters = make_runner()
    states = [request(index, router) for index, router in enumerate(routers)]
    for number, chunk in enumerate(chunks):
        final = number == len(chunks) - 1
        drafts = step(runner, states, [chunk] * len(states), [int(final)] * len(states))
        if not final:
            assert drafts == [[]] * len(states)
    for move in moves:
        for state, (_, entropy) in zip(states, move, strict=False):
            state["entropy"] = entropy
        rows = [min(want, len(draft)) + 1 for (want, _), draft in zip(move, drafts, strict=False)]
        drafts = step(runner, states, rows, rows)
        for name, drafter in drafters.items():
            for index, state in enumerate(states):
                context = int(state["context"])  # type: ignore[call-overload]
                chosen = runner.ongoing[str(state["id"])].drafter == name
                needed = rows_of(state, index, context if chosen else context // BLOCK * BLOCK)
                everything = rows_of(state, index, context)
                written = {slot: token for slot, token in drafter.written.items() if slot in everything}
                assert needed.items() <= written.items() <= everything.items()
                assert runner.deferred[name].count(str(state["id"])) == context - len(written) < BLOCK + 8


EVENTS = st.sampled_from(["go", "go", "go", "go", "preempt", "abort"])


@settings(max_examples=150, deadline=None)
@given(
    routers=st.lists(st.sampled_from(["off", "eagle3", "dflash", "entropy", "cost"]), min_size=1, max_size=3),
    moves=st.lists(
        st.lists(st.tuples(EVENTS, st.integers(0, 7), st.floats(0, 3)), min_size=3, max_size=3), max_size=25
    ),
    hits=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    chunk=st.integers(1, 9),
)
def test_no_stale_row_survives_preemption_abort_or_a_prefix_hit(
    routers: list[str], moves: list[list[tuple[str, int, float]]], hits: list[int], chunk: int
) -> None:
    """A request that loses its cache, or ends, leaves its full blocks to the prefix cache and nothing else.

    What comes after it (the same request again, or a new one with the same prompt) starts at a block boundary
    within those blocks and gets the rest of its rows in chunks; whoever drafts then has every row, once.
    """
    runner, drafters = make_runner()
    states = [request(index, router) | {"goal": 6, "drafted": 0} for index, router in enumerate(routers)]
    lost = 0

    def lose_cache(index: int) -> None:
        """Keep a prefix hit of some full blocks; the other slots are somebody else's from now on."""
        nonlocal lost
        state = states[index]
        context = int(state["context"])  # type: ignore[call-overload]
        kept = min(hits[lost % len(hits)], max(context - 1, 0) // BLOCK) * BLOCK
        lost += 1
        state["context"], state["drafted"] = kept, 0
        for drafter in drafters.values():
            base = int(state["base"])  # type: ignore[call-overload]
            assert rows_of(state, index, kept).items() <= drafter.written.items(), "a shared block is complete"
            for slot in range(base + kept, base + BLOCK * BLOCKS):
                drafter.written.pop(slot, None)

    for move in moves:
        rows, sampled = [], []
        for index, (state, (event, want, entropy)) in enumerate(zip(states, move, strict=False)):
            context = int(state["context"])  # type: ignore[call-overload]
            if event == "preempt" and context:
                runner.preempt(str(state["id"]))
                state["goal"] = context + 1
                lose_cache(index)
            elif event == "abort" and context:
                runner.forget(str(state["id"]))
                lose_cache(index)
                state |= {"id": f"{state['id']}x", "goal": 6 if context > 6 else context + 1, "output": 0}
            state["entropy"] = entropy
            missing = int(state["goal"]) - int(state["context"])  # type: ignore[call-overload]
            if missing > 0:
                rows.append(min(chunk, missing))
                sampled.append(int(missing <= chunk))
            else:
                rows.append(min(want, int(state["drafted"])) + 1)  # type: ignore[call-overload]
                sampled.append(rows[-1])
        step(runner, states, rows, sampled)
        for name, drafter in drafters.items():
            for index, state in enumerate(states):
                context = int(state["context"])  # type: ignore[call-overload]
                chosen = sampled[index] and runner.ongoing[str(state["id"])].drafter == name
                needed = rows_of(state, index, context if chosen else context // BLOCK * BLOCK)
                assert needed.items() <= drafter.written.items()


def test_switching_writes_what_was_deferred_in_one_batch() -> None:
    runner, drafters = make_runner()
    runner.block_size = 1000
    states = [request(0, "entropy", 0.0)]
    step(runner, states, [5], [1])
    for accepted in (2, 1):
        step(runner, states, [accepted + 1], [accepted + 1])
    assert len(drafters["eagle3"].written) == 5, "idle since the prompt"
    states[0]["entropy"] = 2.0
    step(runner, states, [1], [1])
    assert drafters["eagle3"].written == drafters["dflash"].written | {10: 11}
    runner.traces.take("r0")
    step(runner, states, [1], [1])
    (switch,) = runner.traces.take("r0")
    assert (switch.drafter, switch.catch_up_rows) == ("eagle3", 5)


def test_draft_lengths_differ_within_a_batch() -> None:
    runner, _ = make_runner()
    states = [request(0, "eagle3"), request(1, "dflash"), request(2, "off"), request(3, "entropy", 2.0)]
    drafts = step(runner, states, [3, 3, 3, 3], [1, 1, 1, 1])
    assert [len(draft) for draft in drafts] == [4, 7, 0, 4]


def test_past_a_drafters_positions_it_is_not_eligible() -> None:
    runner, _ = make_runner(eagle3=20, dflash=1000)
    states = [request(0, "eagle3"), request(1, "entropy", 2.0)]
    drafts = step(runner, states, [16, 16], [1, 1])
    assert [len(draft) for draft in drafts] == [0, 7], "static: nothing; a router: the other drafter"
    for _ in range(6):
        drafts = step(runner, states, [1, 1], [1, 1])
    assert [len(draft) for draft in drafts] == [0, 7]


def test_near_the_end_of_the_window_nothing_is_drafted() -> None:
    runner, _ = make_runner(max_model_len=20)
    states = [request(0, "dflash")]
    assert step(runner, states, [13], [1]) == [[]]


def test_records_close_with_what_was_accepted() -> None:
    runner, _ = make_runner()
    states = [request(0, "entropy", 0.1)]
    step(runner, states, [5], [1])
    states[0]["entropy"] = 2.5
    step(runner, states, [4], [4])
    step(runner, states, [1], [1])
    first, second = runner.traces.take("r0")
    assert (first.drafter, first.drafted, first.accepted, first.position) == ("dflash", 7, 3, 1)
    assert (second.drafter, second.drafted, second.accepted, second.position) == ("eagle3", 4, 0, 5)
    assert (first.switched, second.switched) == (False, True)
    assert second.signal == {"entropy": 2.5}
    assert first.verify_s == 0.5
    assert runner.traces.take("r0") == []


def test_a_forgotten_request_starts_anew() -> None:
    runner, _ = make_runner()
    states = [request(0, "eagle3")]
    step(runner, states, [5], [1])
    runner.forget("r0")
    states = [{**request(0, "dflash"), "base": 2000}]
    step(runner, states, [5], [1])
    assert runner.traces.take("r0") == [], "the round that was open was never verified"
    assert runner.ongoing["r0"].router.name == "dflash"
