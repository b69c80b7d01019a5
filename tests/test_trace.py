"""Round records: sums by hand, clipping at the answer's end, and a store that does not grow."""

import pytest

from whiflash_engine.service.figures import answer_figures, clip
from whiflash_engine.trace import RoundRecord, acceptance_by_position, mean_acceptance_length, summarize
from whiflash_engine.trace_store import TraceStore


def record(position: int, drafter: str, drafted: int, accepted: int, **fields: object) -> RoundRecord:
    return RoundRecord("r", 0, position, drafter, "entropy", drafted, accepted, **fields)  # type: ignore[arg-type]


ROUNDS = [
    record(1, "eagle3", 4, 2, draft_s=0.5, verify_s=1.0),
    record(4, "dflash", 7, 0, switched=True, draft_s=0.25, verify_s=2.0),
    record(5, "none", 0, 0, switched=True),
]


def test_summary_by_hand() -> None:
    figures = summarize(ROUNDS)
    assert figures["rounds"] == 3
    assert (figures["drafted"], figures["accepted"]) == (11, 2)
    assert figures["mean_acceptance_length"] == pytest.approx(1 + 2 / 3)
    assert figures["share_by_drafter"] == {"dflash": 1 / 3, "eagle3": 1 / 3, "none": 1 / 3}
    assert figures["by_drafter"]["eagle3"]["acceptance_rate"] == 0.5
    assert figures["by_drafter"]["none"]["acceptance_rate"] is None
    assert figures["switches"] == 2
    assert figures["seconds"] == {"draft": 0.75, "verify": 3.0, "catch_up": 0.0, "router": 0.0}


def test_acceptance_by_position_counts_only_drafts_that_long() -> None:
    assert acceptance_by_position(ROUNDS[:2]) == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert acceptance_by_position([]) == []


def test_no_rounds_have_no_means() -> None:
    assert mean_acceptance_length([]) is None
    assert summarize([])["mean_acceptance_length"] is None


def test_tokens_past_the_answers_end_are_not_counted() -> None:
    kept = clip([record(1, "eagle3", 4, 4), record(6, "dflash", 7, 7), record(14, "dflash", 7, 1)], 9)
    assert [(r.position, r.accepted) for r in kept] == [(1, 4), (6, 2)]


def test_figures_carry_the_text_of_each_round() -> None:
    rounds = [record(1, "eagle3", 4, 1), record(3, "dflash", 7, 0)]
    figures = answer_figures(rounds, [10, 11, 12, 13], ["a", "b", "c", "d"], with_trace=True)
    assert [entry["text"] for entry in figures["trace"]] == ["bc", "d"]
    assert figures["token_ids"] == [10, 11, 12, 13]
    assert figures["per_segment"]["prose"]["rounds"] == 2
    assert "trace" not in answer_figures(rounds, [1], ["a"], with_trace=False)


def test_records_survive_json() -> None:
    assert RoundRecord.from_dict(ROUNDS[0].to_dict()) == ROUNDS[0]


def test_the_store_forgets_the_oldest() -> None:
    store = TraceStore(capacity=2)
    for name in ("a", "b", "c"):
        store.add(name, ROUNDS[0])
    assert len(store) == 2
    assert store.take("a") == []
    assert store.take("c") == [ROUNDS[0]]
    assert store.take("c") == []
    silent = TraceStore(enabled=False)
    silent.add("a", ROUNDS[0])
    assert len(silent) == 0
