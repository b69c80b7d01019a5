"""What the best possible choice of drafter would have reached, from surveys: per request and per round.

A survey decodes a request plainly while every drafter drafts at every token; nothing is verified, so it is run
apart from what is timed. Replayed with perfect foresight it says how much routing could win at most.
"""

from collections.abc import Sequence
from typing import Any

import torch

from whiflash_engine.routing.labels import Labels, accepted_prefix
from whiflash_engine.routing.replay import Round, acceptance_length, best_per_request, best_per_round, shares
from whiflash_harnesses.bench.figures import Sample

SURVEY = "survey"


def survey_labels(sample: Sample, names: Sequence[str]) -> Labels:
    """Return what each of the drafters ``names`` would have got right after each of the sample's tokens."""
    offered: dict[str, list[int]] = {name: [] for name in names}
    accepted: dict[str, list[int]] = {name: [] for name in names}
    for record in sample.rounds:
        following = sample.token_ids[record.position :]
        for name in names:
            draft = record.survey.get(name, [])
            offered[name].append(len(draft))
            # The round's own token is the last of an answer at the latest, as in the figures of the arms.
            accepted[name].append(min(accepted_prefix(draft, following), max(len(following) - 1, 0)))
    return Labels(
        entropy=torch.tensor([record.signal.get("entropy", 0.0) for record in sample.rounds]),
        hidden=torch.empty(len(sample.rounds), 0),
        accepted={name: torch.tensor(values) for name, values in accepted.items()},
        offered={name: torch.tensor(values) for name, values in offered.items()},
    )


def oracle_figures(surveys: Sequence[Sample]) -> dict[str, Any] | None:
    """Return the figures of both oracles; ``None`` without surveys, or where nothing could be drafted."""
    names = sorted({name for sample in surveys for record in sample.rounds for name in record.survey})
    if not names:
        return None
    answers = [survey_labels(sample, names) for sample in surveys]
    return {
        "drafters": names,
        "per_request": _figures(best_per_request(answers, names)),
        "per_round": _figures(best_per_round(answers, names)),
    }


def _figures(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        "rounds": len(rounds),
        "mean_acceptance_length": acceptance_length(rounds),
        "share_by_drafter": shares(rounds),
    }
