"""Replay decodes like a router would, and calibration finds what was put into the labels."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whiflash_engine.routing import calibrate, replay
from whiflash_engine.routing.calibrate import entropy_of
from whiflash_engine.routing.fitting import FitOptions, fit_acceptance, fit_neural
from whiflash_engine.routing.labels import Labels, accepted_prefix
from whiflash_engine.routing.replay import Round, acceptance_length, by_threshold, decode, full, shares

HIDDEN = 6


def labels(
    entropy: list[float], eagle3: list[int], dflash: list[int], hidden: torch.Tensor | None = None
) -> Labels:
    count = len(entropy)
    return Labels(
        entropy=torch.tensor(entropy),
        hidden=torch.zeros(count, HIDDEN) if hidden is None else hidden,
        accepted={"eagle3": torch.tensor(eagle3), "dflash": torch.tensor(dflash)},
        offered={"eagle3": torch.full((count,), 4), "dflash": torch.full((count,), 7)},
    )


def test_rounds_start_where_the_one_before_stopped() -> None:
    part = labels([0.1, 0.1, 3.0, 3.0, 0.1, 0.1], [0, 0, 2, 4, 0, 0], [1, 7, 0, 7, 0, 0])
    made = decode([part], by_threshold(entropy_of, 1.0))
    assert made == [Round("dflash", 7, 1), Round("eagle3", 4, 2), Round("dflash", 7, 0)]
    assert acceptance_length(made) == 2.0
    assert shares(made) == {"dflash": 0.6667, "eagle3": 0.3333}
    assert decode([part], lambda answer, at: None) == [Round(None, 0, 0)] * 6


def test_a_drafter_with_nothing_to_offer_is_a_plain_step() -> None:
    part = labels([0.0] * 3, [4, 4, 4], [0, 0, 0])
    part.offered["eagle3"][0] = 0
    assert decode([part], full("eagle3")) == [Round(None, 0, 0), Round("eagle3", 4, 4)]


def test_a_cut_draft_accepts_no_more_than_it_has() -> None:
    part = labels([0.0] * 6, [4] * 6, [0] * 6)
    assert decode([part], lambda answer, at: ("eagle3", 2)) == [Round("eagle3", 2, 2)] * 2


def test_the_best_threshold_separates_the_drafters() -> None:
    answers = [labels([0.02] * 12, [0] * 12, [3] * 12), labels([2.2] * 12, [2] * 12, [0] * 12)]
    points = calibrate.sweep(answers, entropy_of, calibrate.ENTROPY_CANDIDATES)
    assert 0.02 <= calibrate.best_threshold(points) < 2.2
    best = max(point["mean_acceptance_length"] for point in points)
    assert best > points[0]["mean_acceptance_length"]
    assert best > points[-1]["mean_acceptance_length"]
    assert (points[0]["eagle3_share"], points[-1]["eagle3_share"]) == (1.0, 0.0)


def test_the_histogram_covers_every_round() -> None:
    found = calibrate.histogram([labels([0.0, 0.2, 9.0, 0.24], [0] * 4, [0] * 4)])
    assert found["<= 0.01"] == 0.25
    assert found["<= 0.25"] == 0.5
    assert found["> 4"] == 0.25
    assert sum(found.values()) == 1.0


LENGTHS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7), st.floats(0, 4)), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_no_single_drafter_beats_the_oracle_of_its_request(parts: list[list[tuple[int, int, float]]]) -> None:
    answers = [labels([h for *_, h in p], [e for e, *_ in p], [d for _, d, _ in p]) for p in parts]
    per_request = replay.best_per_request(answers, replay.PAIR)
    per_round = replay.best_per_round(answers, replay.PAIR)
    assert len(per_round) <= len(per_request)
    for name in replay.PAIR:
        assert len(per_request) <= len(decode(answers, full(name)))
    emitted = [sum(made.accepted + 1 for made in decode(answers, full(name))) for name in replay.PAIR]
    assert min(emitted) >= sum(map(len, answers)), "a decode ends at or past the last token"


def test_the_longest_draft_now_is_not_always_the_best_choice() -> None:
    part = labels([0.0] * 9, [1, 0, 4, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 1, 0])
    assert [made.drafter for made in replay.best_per_round([part], replay.PAIR)] == ["eagle3", "eagle3", "dflash"]


def test_a_prefix_is_accepted_up_to_the_first_wrong_token() -> None:
    assert accepted_prefix([1, 2, 3], [1, 2, 4, 3]) == 2
    assert accepted_prefix([1, 2, 3], [1, 2]) == 2
    assert accepted_prefix([], [1]) == accepted_prefix([2], []) == 0


def told_apart(count: int, seed: int) -> list[Labels]:
    """Answers whose state says who is ahead: its first entry is 1 for EAGLE-3, -1 for DFlash."""
    generator = torch.Generator().manual_seed(seed)
    answers = []
    for _ in range(count):
        sides = torch.randint(2, (30,), generator=generator) * 2 - 1
        hidden = torch.randn(30, HIDDEN, generator=generator) * 0.1
        hidden[:, 0] = sides.float()
        ahead = (sides > 0).long()
        answers.append(labels([1.0] * 30, (4 * ahead).tolist(), (5 * (1 - ahead)).tolist(), hidden))
    return answers


def test_the_neural_router_learns_the_sign_of_the_lead() -> None:
    """ΔAL is EAGLE-3's lead: positive where EAGLE-3 accepts more (the paper does not say)."""
    model, notes = fit_neural(told_apart(20, 0), FitOptions(rate=3e-3))
    eagle3, dflash = torch.zeros(2, HIDDEN)
    eagle3[0], dflash[0] = 1.0, -1.0
    assert float(model(eagle3)) > notes["threshold"] > float(model(dflash))
    fresh = told_apart(6, 1)
    routed = decode(fresh, by_threshold(calibrate.delta_of(model), notes["threshold"]))
    assert acceptance_length(routed) > max(acceptance_length(decode(fresh, full(n))) for n in replay.PAIR)


def test_the_acceptance_network_learns_who_survives() -> None:
    model, notes = fit_acceptance(told_apart(20, 0), {"eagle3": 4, "dflash": 7}, FitOptions(rate=3e-3))
    assert notes["columns"] == {"eagle3": (0, 4), "dflash": (4, 11)}
    state = torch.zeros(HIDDEN)
    state[0] = 1.0
    hazards = torch.sigmoid(model(state))
    assert hazards[:4].min() > 0.8
    assert hazards[4] < 0.2
    # DFlash accepts five where it is ahead, so its sixth token is wrong; the seventh is never reached.
    state[0] = -1.0
    hazards = torch.sigmoid(model(state))
    assert hazards[4:9].min() > 0.8
    assert hazards[9] < 0.2
