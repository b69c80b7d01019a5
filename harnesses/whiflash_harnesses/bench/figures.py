"""From measured requests to the numbers of the report. Pure functions; the units are in the names.

Terms: *decode seconds* of a request run from its first to its last token, so that prefill is not in the
ratios between arms; *round seconds* sum up the four measured phases: draft, catch-up, verify, router.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from whiflash_engine.trace import RoundRecord, summarize

OFF = "off"
REFERENCES = (OFF, "eagle3", "dflash")
SINGLES = ("eagle3", "dflash", "ngram")
"""Arms of one drafter alone."""
PHASES = ("draft", "catch_up", "verify", "router")


@dataclass(frozen=True)
class Sample:
    """One request under one arm, as measured."""

    workload: str
    request: str
    arm: str
    output_tokens: int
    ttft_s: float
    decode_s: float
    token_ids: tuple[int, ...] = ()
    token_texts: tuple[str, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    per_segment: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first token; ``None`` if there was no second one."""
        return (self.output_tokens - 1) / self.decode_s if self.output_tokens > 1 and self.decode_s else None


@dataclass(frozen=True)
class Group:
    """Requests that ran together under one arm, and the wall-clock seconds they took."""

    arm: str
    seconds: float
    samples: tuple[Sample, ...]


def workload_figures(
    groups: Sequence[Group], arms: Sequence[str], oracle: dict[str, Any] | None = None, *, greedy: bool = True
) -> dict[str, Any]:
    """Return what the report says of one workload (or of several put together).

    Texts are compared with those of ``off`` if it ran and decoding was ``greedy``.
    """
    samples = [sample for group in groups for sample in group.samples]
    compared = greedy and OFF in arms
    differing = differing_from_off(samples) if compared else []
    return {
        "arms": {arm: arm_figures([group for group in groups if group.arm == arm]) for arm in arms},
        "ratios": {arm: _ratios_of(arm, arms, samples) for arm in arms},
        "best_single": best_single(groups, arms),
        "oracle": oracle,
        "identical_to_off": not differing if compared else None,
        "differing": differing,
    }


def arm_figures(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the figures of one arm.

    ``tok_s`` counts all seconds, prefill too; ``ttft_ms`` and ``itl_ms`` are medians over the requests.
    """
    samples = [sample for group in groups for sample in group.samples]
    records = [record for sample in samples for record in sample.rounds]
    summary = summarize(records)
    seconds = sum(group.seconds for group in groups)
    tokens = sum(sample.output_tokens for sample in samples)
    copied = ("rounds", "drafted", "accepted", "mean_acceptance_length", "acceptance_by_position")
    return {
        "requests": len(samples),
        "output_tokens": tokens,
        "seconds": seconds,
        "tok_s": _divide(tokens, seconds),
        "ttft_ms": _median(1000 * sample.ttft_s for sample in samples),
        "itl_ms": _median(1000 / sample.decode_tok_s for sample in samples if sample.decode_tok_s),
        **{key: summary[key] for key in copied},
        "share_by_drafter": summary["share_by_drafter"],
        "acceptance_by_drafter": summary["by_drafter"],
        "switches": summary["switches"],
        "catch_up_rows": summary["catch_up_rows"],
        **_fractions(summary["seconds"]),
        "per_segment": merge_segments(sample.per_segment for sample in samples),
        "round_profile": round_profile(summary["seconds"], len(records), sum(s.decode_s for s in samples)),
    }


def round_profile(phase_s: dict[str, float], rounds: int, decode_s: float) -> dict[str, float] | None:
    """Return mean seconds of one round by phase; ``overhead_s`` is what the phases do not account for.

    ``None`` without rounds. The overhead is the engine's: scheduling, sampling, detokenizing, streaming.
    """
    if not rounds:
        return None
    phases = {f"{name}_s": phase_s[name] / rounds for name in PHASES}
    whole = decode_s / rounds
    return {"round_s": whole, **phases, "overhead_s": whole - sum(phases.values())}


def _fractions(phase_s: dict[str, float]) -> dict[str, float | None]:
    whole = sum(phase_s[name] for name in PHASES)
    return {
        "router_fraction": _divide(phase_s["router"], whole),
        "switch_fraction": _divide(phase_s["router"] + phase_s["catch_up"], whole),
    }


def merge_segments(parts: Iterable[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Add up the per-segment figures of several requests; the means are made anew from the sums."""
    merged: dict[str, dict[str, Any]] = {}
    for part in parts:
        for segment, figures in part.items():
            into = merged.setdefault(segment, {"tokens": 0, **_no_rounds(), "by_drafter": {}})
            into["tokens"] += figures["tokens"]
            _add_rounds(into, figures)
            for drafter, of_drafter in figures["by_drafter"].items():
                _add_rounds(into["by_drafter"].setdefault(drafter, _no_rounds()), of_drafter)
    return merged


def _no_rounds() -> dict[str, Any]:
    return {"rounds": 0, "drafted": 0, "accepted": 0, "mean_acceptance_length": None}


def _add_rounds(into: dict[str, Any], figures: dict[str, Any]) -> None:
    for key in ("rounds", "drafted", "accepted"):
        into[key] += figures[key]
    if into["rounds"]:
        into["mean_acceptance_length"] = 1 + into["accepted"] / into["rounds"]


def _ratios_of(arm: str, arms: Sequence[str], samples: Sequence[Sample]) -> dict[str, Any]:
    references = (name for name in REFERENCES if name in arms and name != arm)
    return {f"vs_{name}": speed_ratio(samples, arm, name) for name in references}


def best_single(groups: Sequence[Group], arms: Sequence[str]) -> dict[str, Any] | None:
    """Return the fastest arm of one drafter alone (by ``tok_s``), and every router's ``tok_s`` over its own."""
    speeds = {arm: arm_figures([group for group in groups if group.arm == arm])["tok_s"] for arm in arms}
    singles = {arm: speed for arm, speed in speeds.items() if arm in SINGLES and speed}
    if not singles:
        return None
    best = max(singles, key=lambda arm: singles[arm])
    routers = (arm for arm in arms if arm not in (*SINGLES, OFF))
    return {"arm": best, "over_it": {arm: _divide(speeds[arm] or 0.0, singles[best]) for arm in routers}}


def speed_ratio(samples: Sequence[Sample], arm: str, reference: str) -> dict[str, float] | None:
    """Return quartiles of ``arm``'s speed over ``reference``'s, each ratio over one and the same request.

    ``None`` if no request has two tokens under both arms.
    """
    speed = {(s.workload, s.request, s.arm): s.decode_tok_s for s in samples}
    ratios = []
    for (workload, request, of_arm), own in speed.items():
        other = speed.get((workload, request, reference))
        if of_arm == arm and own and other:
            ratios.append(own / other)
    return _quartiles(ratios)


def differing_from_off(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """List requests whose token ids are not those of ``off``; ``position`` is the first that differs."""
    off = {(s.workload, s.request): s.token_ids for s in samples if s.arm == OFF}
    differing = []
    for sample in samples:
        expected = off.get((sample.workload, sample.request))
        if expected is not None and sample.token_ids != expected:
            where = {"workload": sample.workload, "request": sample.request, "arm": sample.arm}
            differing.append({**where, "position": _first_difference(sample.token_ids, expected)})
    return differing


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _quartiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "p25": low, "p75": high}


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return median(listed) if listed else None


def _divide(part: float, whole: float) -> float | None:
    return part / whole if whole else None
