"""Routers and the entropy signal."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whiflash_engine.config import build_config, check_router
from whiflash_engine.errors import ConfigError
from whiflash_engine.routing import (
    Choice,
    EntropyRouter,
    RoundCosts,
    RouterSettings,
    Signals,
    StaticRouter,
    build_routers,
    row_entropy,
)

BOTH = {"eagle3": 4, "dflash": 7}
SETTINGS = RouterSettings(entropy_threshold=1.0, hidden=8)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=20))
def test_row_entropy_is_the_definition(values: list[float]) -> None:
    logits = torch.tensor([values], dtype=torch.float64)
    probabilities = torch.softmax(logits, dim=-1)
    expected = -(probabilities * torch.log(probabilities.clamp_min(1e-300))).sum().item()
    assert row_entropy(logits).item() == pytest.approx(expected, abs=1e-9)


def test_row_entropy_of_known_rows() -> None:
    certain = torch.zeros(1000)
    certain[3] = 80.0
    rows = torch.stack([torch.zeros(1000), certain])
    uniform, sure = row_entropy(rows).tolist()
    assert uniform == pytest.approx(math.log(1000), rel=1e-5)
    assert sure == pytest.approx(0, abs=1e-4)


def test_row_entropy_of_half_precision_and_of_masked_rows() -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * 4
    full = row_entropy(logits.bfloat16().float())
    assert row_entropy(logits.bfloat16()).tolist() == pytest.approx(full.tolist(), abs=1e-4)
    logits[:, 10:] = float("-inf")
    assert torch.isfinite(row_entropy(logits)).all()


def test_entropy_router_sends_uncertainty_to_eagle3() -> None:
    router = EntropyRouter(0.7)
    assert router.choose(Signals(0.71), BOTH) == Choice("eagle3", 4)
    assert router.choose(Signals(0.7), BOTH) == Choice("dflash", 7)
    assert router.choose(Signals(3.0), {"dflash": 7}) == Choice("dflash", 7)
    assert router.choose(Signals(0.0), {"eagle3": 2}) == Choice("eagle3", 2)
    assert router.choose(Signals(0.0), {}) is None


def test_static_router_names_one_or_none() -> None:
    assert StaticRouter("eagle3", "eagle3").choose(Signals(9.0), BOTH) == Choice("eagle3", 4)
    assert StaticRouter("eagle3", "eagle3").choose(Signals(None), {"dflash": 7}) is None
    assert StaticRouter("off", None).choose(Signals(None), BOTH) is None


def test_routers_follow_from_the_drafters() -> None:
    both = build_routers(["eagle3", "dflash"], SETTINGS, RoundCosts())
    assert set(both) == {"off", "eagle3", "dflash", "entropy", "cost", "survey"}
    assert set(build_routers(["eagle3"], SETTINGS, RoundCosts())) == {"off", "eagle3", "cost", "survey"}
    assert "ngram" in build_routers(["eagle3", "ngram"], SETTINGS, RoundCosts())


def test_unknown_router_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown router 'fastest': choose one of eagle3, dflash, ngram, entropy, neural, cost, off, survey",
    ):
        check_router("fastest")
    with pytest.raises(ConfigError, match="fastest"):
        build_config(router="fastest")
    with pytest.raises(ConfigError, match=r"eagle3_tokens=0"):
        build_config(eagle3_tokens=0)
