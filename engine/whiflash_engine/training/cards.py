"""The model card that goes with exported weights."""

from typing import Any

from whiflash_engine.training.replay import table

_TITLES = {
    "eagle3": "EAGLE-3 head, one layer, for SmolLM2-135M-Instruct",
    "dflash": "DFlash drafter, block 8, for SmolLM2-135M-Instruct",
}
_MEASURES = {
    "eagle3": "4 draft tokens per round",
    "dflash": "7 draft tokens per round",
}


def _remarks(notes: dict[str, Any]) -> str:
    """Return what a person added to the notes: anything that differs from one plain run of the commands."""
    return f" {notes['remarks']}" if notes.get("remarks") else ""


def card(name: str, notes: dict[str, Any], report: dict[str, Any]) -> str:
    """Return the card of drafter ``name`` from the training notes and a replay report."""
    tokens = notes.get("tokens", {})
    by_kind = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tokens.items()))
    rounds = ", ".join(f"{segment} {part['rounds']:,}" for segment, part in report[name].items())
    return f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
tags: [speculative-decoding, {name}]
---
# {_TITLES[name]}

Loads in vLLM with `speculative_config={{"method": "{name}", "model": <this folder>, ...}}`, bfloat16.

- Data: {notes.get("answers", 0):,} answers of the target itself to prompts made by
  `whiflash_engine.training.prompts`, {sum(tokens.values()):,} answer tokens
  ({by_kind});
  half greedy, half at temperature 0.7 to 1.0; tool calls under a grammar. No outside text.
- Training: {notes.get("steps", 0):,} steps, answers per step {notes.get("batch", 0)}, AdamW, highest rate
  {notes.get("rate", 0)}, seed {notes.get("seed", 0)}; {notes.get("seconds", 0):.0f} s, CPU threads:
  {notes.get("threads", 0)}.{_remarks(notes)}
- Held-out: topics that no training prompt is about, greedy answers, decoded again round by round by replay.
  Mean acceptance length (accepted tokens and the bonus token), {_MEASURES[name]}:

```
{table(report)}
```

Acceptance by position, all segments: {report[name]["all"]["acceptance_by_position"]}. Rounds: {rounds}.

Made again by `python -m whiflash_engine.training generate`, `features`, `{name}` and `export`, each with
`--target <folder of the target> --work <folder>`. The target is a 135M model: these weights show what routing
does, not a coding skill.
"""
