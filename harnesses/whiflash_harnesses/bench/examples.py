"""One whole answer per workload and arm, token by token, for the report's per-token view."""

from collections.abc import Sequence
from typing import Any

from whiflash_harnesses.bench.figures import Group, Sample


def pick_examples(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Return the first measured request of every workload under every arm: ``{workload: {arm: example}}``."""
    examples: dict[str, dict[str, Any]] = {}
    for sample in (sample for group in groups for sample in group.samples):
        examples.setdefault(sample.workload, {}).setdefault(sample.arm, _example(sample))
    return examples


def _example(sample: Sample) -> dict[str, Any]:
    return {
        "request": sample.request,
        "tokens": list(sample.token_texts),
        "rounds": [record.to_dict() for record in sample.rounds],
    }
