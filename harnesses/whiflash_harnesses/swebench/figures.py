"""The figures of a run, from its trajectories and verdicts. Console and JSON show the same ones.

Drafting figures are sums over turns of ``response_metadata["whiflash"]``; a mean acceptance length counts
the bonus token: (accepted + rounds) / rounds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from whiflash_harnesses.swebench.folder import RunFolder, read_json

SCHEMA = "whiflash-swebench-report/1"
_COUNTS = ("rounds", "drafted", "accepted")
_SUMMED = (
    *("steps", "malformed_calls", "cut_replies", "input_tokens", "output_tokens", "cached_tokens"),
    *("generation_s", "tool_s"),
)


def figures(folder: RunFolder) -> dict[str, Any]:
    """Return everything the report says, as JSON data."""
    run = folder.read_run()
    results = read_json(folder.results_file) or {}
    verdicts = results.get("instances", {})
    instances = {}
    for name in sorted(folder.predictions()):
        trajectory = folder.trajectory(name) or {}
        instances[name] = _instance(trajectory, verdicts.get(name))
    return {
        "schema": SCHEMA,
        "config": run["config"],
        "versions": run["versions"],
        "evaluation": results.get("evaluation"),
        "instances": instances,
        "overall": _overall(list(instances.values())),
    }


def _instance(trajectory: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    info = trajectory.get("info", {})
    replies = [m["extra"] for m in trajectory.get("messages", []) if m.get("role") == "assistant"]
    turns = [extra for extra in replies if not extra.get("given")]
    sums = {
        "steps": len(turns),
        "malformed_calls": sum(turn["malformed"] for turn in turns),
        "cut_replies": sum(turn["finish_reason"] == "length" for turn in turns),
        "input_tokens": sum(turn["usage"].get("input_tokens", 0) for turn in turns),
        "output_tokens": sum(turn["usage"].get("output_tokens", 0) for turn in turns),
        "cached_tokens": sum(
            (turn["usage"].get("input_token_details") or {}).get("cache_read", 0) for turn in turns
        ),
        "generation_s": sum(turn["generation_s"] for turn in turns),
        "tool_s": sum(turn["tool_s"] for turn in turns),
    }
    return {
        "resolved": verdict["resolved"] if verdict else None,
        "verdict": verdict,
        "exit_status": info.get("exit_status"),
        "exit_detail": info.get("exit_detail"),
        "patch_lines": len(str(info.get("submission", "")).splitlines()),
        **sums,
        "tok_s": _rate(sums["output_tokens"], sums["generation_s"]),
        "drafting": add_drafting(turn["whiflash"] for turn in turns),
    }


def _overall(instances: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {key: sum(instance[key] for instance in instances) for key in _SUMMED}
    judged = [instance for instance in instances if instance["resolved"] is not None]
    return {
        "instances": len(instances),
        "evaluated": len(judged),
        "resolved": sum(instance["resolved"] for instance in judged),
        **sums,
        "tok_s": _rate(sums["output_tokens"], sums["generation_s"]),
        "drafting": add_drafting(instance["drafting"] for instance in instances),
    }


def add_drafting(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up drafting figures (of turns, or of sums made here): totals, per drafter, per segment."""
    listed = [part for part in parts if part]
    names = sorted({name for part in listed for name in part.get("per_segment") or {}})
    per_segment = {}
    for name in names:
        found = [part["per_segment"][name] for part in listed if name in (part.get("per_segment") or {})]
        tokens = sum(segment.get("tokens", 0) for segment in found)
        per_segment[name] = {"tokens": tokens, **_counts(found), "by_drafter": _by_drafter(found)}
    return {**_counts(listed), "by_drafter": _by_drafter(listed), "per_segment": per_segment}


def _by_drafter(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = sorted({name for part in parts for name in part.get("by_drafter") or {}})
    return {
        name: _counts([p["by_drafter"][name] for p in parts if name in (p.get("by_drafter") or {})])
        for name in names
    }


def _counts(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {key: sum(part.get(key, 0) for part in parts) for key in _COUNTS}
    rounds = sums["rounds"]
    sums["mean_acceptance_length"] = 1 + sums["accepted"] / rounds if rounds else None
    return sums


def _rate(tokens: float, seconds: float) -> float | None:
    return tokens / seconds if seconds else None
