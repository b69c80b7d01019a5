"""The neural and the cost-aware router, without an engine."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing import (
    Choice,
    CostRouter,
    NeuralRouter,
    RoundCosts,
    RouterSettings,
    Signals,
    build_routers,
)
from whiflash_engine.routing.acceptance import AcceptanceModel, Track, corrected
from whiflash_engine.routing.cost import PATIENCE
from whiflash_engine.routing.costs import ENOUGH, WINDOW, PhaseTimes
from whiflash_engine.routing.mlp import RouterMlp, load_mlp, save_mlp
from whiflash_engine.trace import RoundRecord

HIDDEN = 8
OFFERS = {"eagle3": 4, "dflash": 7, "ngram": 10}


def public_form(path: Path, hidden: int = HIDDEN, width: int = 16, outputs: int = 1) -> Path:
    """A router file as others write it: other names, no metadata."""
    save_file(
        {
            "net.0.weight": torch.randn(width, hidden),
            "net.0.bias": torch.zeros(width),
            "net.2.weight": torch.randn(outputs, width),
            "net.2.bias": torch.zeros(outputs),
        },
        path,
    )
    return path


# The files


def test_a_router_of_the_public_form_is_read_whatever_its_names(tmp_path: Path) -> None:
    model, notes = load_mlp(public_form(tmp_path / "r.safetensors"), HIDDEN)
    assert notes == {}
    assert model(torch.ones(3, HIDDEN)).shape == (3, 1)


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    written = RouterMlp(HIDDEN, 2, 16)
    save_mlp(written, tmp_path / "r.safetensors", {"threshold": 0.25})
    read, notes = load_mlp(tmp_path / "r.safetensors", HIDDEN)
    state = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(read(state), written(state), atol=0.02)
    assert notes == {"threshold": 0.25}


def test_a_foreign_router_file_says_what_it_holds(tmp_path: Path) -> None:
    path = public_form(tmp_path / "r.safetensors", hidden=12)
    with pytest.raises(
        CheckpointError, match=r"does not fit a target of hidden size 8: .*net\.0\.weight \[16, 12\]"
    ):
        load_mlp(path, HIDDEN)


def test_a_corrupt_router_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    path.write_bytes(b"\x07\x00\x00\x00 not a router")
    with pytest.raises(CheckpointError, match=r"r\.safetensors cannot be read"):
        load_mlp(path, HIDDEN)


def test_an_acceptance_file_must_say_whose_outputs_are_whose(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="which output is whose"):
        AcceptanceModel.read(public_form(tmp_path / "r.safetensors", outputs=11), HIDDEN)


def test_a_network_as_wide_as_the_state_is_read(tmp_path: Path) -> None:
    save_mlp(RouterMlp(16, 1, 16), tmp_path / "r.safetensors", {})
    model, _ = load_mlp(tmp_path / "r.safetensors", 16)
    assert (model.up.out_features, model.down.out_features) == (16, 1)


def test_router_files_are_checked_before_the_engine_starts(tmp_path: Path) -> None:
    from whiflash_engine.checkpoints.registry import ResolvedModels
    from whiflash_engine.checkpoints.validate import check_router_files

    wide = public_form(tmp_path / "wide.safetensors", outputs=11)
    models = ResolvedModels("t", "t", None, None, 1.0, neural_router=str(wide))
    with pytest.raises(CheckpointError, match="has 11 outputs, the neural router has one: is it"):
        check_router_files(models, HIDDEN)
    models = ResolvedModels("t", "t", None, None, 1.0, acceptance=str(wide))
    with pytest.raises(CheckpointError, match="which output is whose"):
        check_router_files(models, HIDDEN)


# Neural


def test_a_predicted_lead_of_eagle3_goes_to_eagle3() -> None:
    model = RouterMlp(HIDDEN, 1, 16).requires_grad_(False)
    torch.nn.init.zeros_(model.down.weight)
    for lead, drafter in ((0.6, "eagle3"), (0.4, "dflash"), (-2.0, "dflash")):
        torch.nn.init.constant_(model.down.bias, lead)
        choice = NeuralRouter(model, 0.5).choose(Signals(hidden=torch.ones(HIDDEN)), OFFERS)
        assert choice is not None
        assert (choice.drafter, choice.notes) == (drafter, {"delta_al": pytest.approx(lead)})


def test_the_threshold_comes_from_the_caller_then_the_file_then_the_paper(tmp_path: Path) -> None:
    ours, foreign = tmp_path / "ours.safetensors", public_form(tmp_path / "foreign.safetensors")
    save_mlp(RouterMlp(HIDDEN, 1, 16), ours, {"threshold": 0.25})
    for path, given_, expected in ((ours, None, 0.25), (ours, 0.5, 0.5), (foreign, None, 1.0)):
        settings_ = RouterSettings(1.0, HIDDEN, neural=path, neural_threshold=given_)
        router = build_routers(["eagle3", "dflash"], settings_, RoundCosts())["neural"]
        assert isinstance(router, NeuralRouter)
        assert router.threshold == expected


# Costs


def test_a_phase_is_the_median_of_a_bounded_window() -> None:
    phase = PhaseTimes(lambda size: float(size))
    assert phase.estimate(3) == 3.0, "nothing seen: the prior"
    for seconds in [9.0] * WINDOW + [1.0] * WINDOW:
        phase.add(4, seconds)
    phase.add(4, 100.0)
    assert phase.estimate(4) == 1.0, "old rounds are forgotten, an outlier changes nothing"
    assert phase.estimate(8) == 2.0, "twice the size: twice the time, by the prior"


def test_a_drafter_never_measured_is_scaled_to_the_measured_target() -> None:
    costs = RoundCosts()
    before = costs.round_seconds("eagle3", 4, 1) / costs.round_seconds(None, 0, 1)
    for _ in range(ENOUGH):
        costs.add_verify(1, 0.035)
    assert costs.round_seconds("eagle3", 4, 1) / costs.round_seconds(None, 0, 1) == pytest.approx(before)
    assert costs.round_seconds(None, 0, 1) == 0.035


# Cost-aware


def fixed(hazards: dict[str, float]) -> AcceptanceModel:
    """An acceptance model that says the same of every state."""
    columns, values = {}, []
    for name, hazard in hazards.items():
        columns[name] = (len(values), len(values) + 1)
        values.append(torch.logit(torch.tensor(hazard)))
    model = RouterMlp(HIDDEN, len(values), 16)
    torch.nn.init.zeros_(model.down.weight)
    with torch.no_grad():
        model.down.bias.copy_(torch.stack(values))
    return AcceptanceModel(model, columns)


def measured(draft: dict[str, float], verify: float = 1.0, per_row: float = 0.0) -> RoundCosts:
    costs = RoundCosts()
    for _ in range(ENOUGH):
        for rows in range(1, 12):
            costs.add_verify(rows, verify + per_row * rows)
        for name, per_token in draft.items():
            for tokens in range(1, 11):
                costs.add_draft(name, 1, tokens, per_token * tokens)
    return costs


def choose(router: CostRouter, offers: dict[str, int] | None = None, **signals: object) -> Choice | None:
    return router.choose(Signals(hidden=torch.zeros(HIDDEN), **signals), offers or OFFERS)  # type: ignore[arg-type]


def test_drafting_that_does_not_pay_is_not_done() -> None:
    hopeless = fixed({"eagle3": 0.02, "dflash": 0.02, "ngram": 0.02})
    assert (
        choose(CostRouter(tuple(OFFERS), hopeless, measured({"eagle3": 0.1, "dflash": 0.1}, per_row=0.05))) is None
    )


def test_the_drafter_with_most_tokens_per_second_is_chosen() -> None:
    even = fixed({"eagle3": 0.7, "dflash": 0.7})
    for cheap, dear in (("eagle3", "dflash"), ("dflash", "eagle3")):
        choice = choose(
            CostRouter(("eagle3", "dflash"), even, measured({cheap: 0.05, dear: 0.4})), {"eagle3": 4, "dflash": 4}
        )
        assert choice is not None
        assert choice.drafter == cheap


def test_the_draft_ends_where_another_token_costs_more_than_it_brings() -> None:
    lengths = []
    for per_token in (0.001, 0.1, 0.3):
        choice = choose(
            CostRouter(("eagle3",), fixed({"eagle3": 0.6}), measured({"eagle3": per_token})), {"eagle3": 8}
        )
        lengths.append(choice.tokens if choice else 0)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8
    assert 0 < lengths[-1] < 4


def test_catching_up_counts() -> None:
    costs = measured({"eagle3": 0.1, "dflash": 0.1})
    router = CostRouter(("eagle3", "dflash"), fixed({"eagle3": 0.61, "dflash": 0.6}), costs)
    offers = {"eagle3": 4, "dflash": 4}
    for _ in range(ENOUGH):
        costs.add_writes(1, 0.1)
        costs.add_writes(16, 0.9)
    assert choose(router, offers).drafter == "eagle3"  # type: ignore[union-attr]
    assert choose(router, offers, deferred={"eagle3": 15, "dflash": 0}).drafter == "dflash"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["bad forecast", "slow moment"])
def test_a_drafter_that_had_a_bad_spell_gets_another_chance(how: str) -> None:
    """What is not chosen is not measured: without a fresh start one bad spell would last for ever."""
    costs = measured({}, per_row=0.02)
    router = CostRouter(("eagle3",), AcceptanceModel.read(None, HIDDEN), costs)
    if how == "slow moment":
        for _ in range(ENOUGH):
            costs.add_draft("eagle3", 1, 4, 9.0)
    choices = []
    for number in range(4 * PATIENCE):
        choice = choose(router, {"eagle3": 4}, request="r")
        choices.append(choice is not None)
        if choice is not None:
            costs.add_draft("eagle3", 1, choice.tokens, 0.05 * choice.tokens)
            accepted = 0 if how == "bad forecast" and number < PATIENCE // 2 else choice.tokens
            router.observe(record("eagle3", choice.tokens, accepted))
    assert not any(choices[PATIENCE // 2 : PATIENCE // 2 + 50]), "it was given up"
    assert all(choices[-50:]), "and found to be worth it again"


def test_a_cut_draft_is_held_against_its_own_length_only() -> None:
    router = CostRouter(("eagle3",), fixed({"eagle3": 0.9}), measured({"eagle3": 0.01}))
    for _ in range(20):
        assert choose(router, {"eagle3": 8}, request="r") is not None
        router.observe(record("eagle3", 2, 2))
    assert router._tracks["r"]["eagle3"].ratio() == pytest.approx(2 / (0.9 + 0.81), abs=0.02)


def test_costs_of_one_batch_size_serve_for_another() -> None:
    costs = measured({"eagle3": 0.1})
    assert costs.round_seconds("eagle3", 4, 3) == pytest.approx(costs.round_seconds(None, 0, 15) + 0.4)


def record(drafter: str, drafted: int, accepted: int, request: str = "r") -> RoundRecord:
    return RoundRecord(request, 0, 0, drafter, "cost", drafted, accepted)


def test_what_a_request_shows_corrects_the_forecast() -> None:
    model = fixed({"eagle3": 0.6, "ngram": 0.55})
    router = CostRouter(("eagle3", "ngram"), model, measured({"eagle3": 0.1, "ngram": 0.1}))
    offers = {"eagle3": 4, "ngram": 4}
    for _ in range(6):
        choice = choose(router, offers, request="r")
        assert choice is not None
        router.observe(record(choice.drafter, choice.tokens, 0 if choice.drafter == "eagle3" else choice.tokens))
    assert choice.drafter == "ngram"
    router.forget("r")
    assert "r" not in router._tracks


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.floats(0.001, 0.2)), max_size=60))
def test_the_same_trace_gives_the_same_choices(trace: list[tuple[int, float]]) -> None:
    """Whatever rounds showed, choices follow from it alone, and never ask for more than is offered."""

    def play() -> list[Choice | None]:
        costs = RoundCosts()
        router = CostRouter(tuple(OFFERS), fixed({"eagle3": 0.6, "dflash": 0.5, "ngram": 0.5}), costs)
        choices = []
        for number, (accepted, seconds) in enumerate(trace):
            choice = choose(router, request=f"r{number % 3}")
            choices.append(choice)
            if choice is not None:
                assert 1 <= choice.tokens <= OFFERS[choice.drafter]
                costs.add_verify(1 + choice.tokens, seconds)
                costs.add_draft(choice.drafter, 1, choice.tokens, seconds / 3)
                accepted = min(accepted, choice.tokens)
                router.observe(record(choice.drafter, choice.tokens, accepted, f"r{number % 3}"))
        return choices

    assert play() == play()


def test_without_a_network_the_rounds_alone_teach() -> None:
    model = AcceptanceModel.read(None, HIDDEN)
    assert model.survivals(None, {"eagle3": 3}) == {"eagle3": [0.5, 0.25, 0.125]}


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10)), max_size=40))
def test_a_track_stays_between_belief_and_evidence(seen: list[tuple[float, int]]) -> None:
    track = Track(16)
    for expected, accepted in seen:
        track.add(expected, accepted)
    last = seen[-16:]
    evidence = sum(a for _, a in last) / total if (total := sum(e for e, _ in last)) else None
    bounds = [1.0] if evidence is None else [1.0, evidence]
    if evidence is not None:
        assert min(bounds) - 1e-6 <= track.ratio() <= max(bounds) + 1e-6
    assert all(value <= 1.0 for value in corrected([0.9, 0.5], track.ratio()))
