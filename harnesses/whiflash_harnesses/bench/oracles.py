"""What the best possible choice of drafter would have reached, from surveys: per request and per round.

A survey decodes a request plainly while every drafter drafts at every token; nothing is verified, so it is run
apart from what is timed. Replayed with perfect foresight it says how much routing could win at most.
"""

from collections.abc import Sequence
from typing import Any

import torch

from whiflash_engine.routing.calibrate import best_per_request, best_per_round
from whiflash_engine.routing.labels import Labels, Round, acceptance_length, decode, shares
from whiflash_harnesses.bench.figures import Sample

SURVEY = "survey"


def survey_labels(sample: Sample) -> Labels:
    """Return what every drafter would have got right after each of the sample's tokens."""
    names = sorted({name for record in sample.rounds for name in record.survey})
    offered: dict[str, list[int]] = {name: [] for name in names}
    accepted: dict[str, list[int]] = {name: [] for name in names}
    for record in sample.rounds:
        following = sample.token_ids[record.position :]
        for name in names:
            draft = record.survey.get(name, [])
            right = [a == b for a, b in zip(draft, following, strict=False)] + [False]
            offered[name].append(len(draft))
            accepted[name].append(right.index(False))
    return Labels(
        kind=sample.workload,
        entropy=torch.tensor([record.signal.get("entropy", 0.0) for record in sample.rounds]),
        hidden=torch.empty(len(sample.rounds), 0),
        accepted={name: torch.tensor(values) for name, values in accepted.items()},
        offered={name: torch.tensor(values) for name, values in offered.items()},
    )


def oracle_figures(surveys: Sequence[Sample]) -> dict[str, Any] | None:
    """Return the figures of both oracles; ``None`` without surveys, or where nothing could be drafted."""
    answers = [survey_labels(sample) for sample in surveys]
    names = tuple(sorted({name for answer in answers for name in answer.offered}))
    if not names:
        return None
    answers = [answer for answer in answers if tuple(sorted(answer.offered)) == names]
    return {
        "drafters": list(names),
        "per_request": _figures(best_per_request(answers, names)),
        "per_round": _figures(decode(answers, best_per_round(names))),
    }


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        "rounds": len(rounds),
        "mean_acceptance_length": acceptance_length(rounds),
        "share_by_drafter": shares(rounds),
    }
