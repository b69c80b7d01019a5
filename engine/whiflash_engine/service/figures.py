"""The ``whiflash`` part of an answer: round records joined to the tokens they emitted."""

from collections.abc import Sequence
from typing import Any

from whiflash_engine.segments import label_rounds, per_segment
from whiflash_engine.trace import RoundRecord, summarize


def answer_figures(
    records: Sequence[RoundRecord], token_ids: Sequence[int], token_texts: Sequence[str], *, with_trace: bool
) -> dict[str, Any]:
    """Return the summary of a request's rounds; with ``with_trace`` also every round and the tokens, one by one.

    A last round may have accepted tokens past the end of the answer (after a stop); those are not counted.
    """
    rounds = clip(records, len(token_ids))
    figures = summarize(rounds) | {"per_segment": per_segment(rounds, token_texts)}
    if with_trace:
        labels = label_rounds(rounds, token_texts)
        figures["token_ids"] = list(token_ids)
        figures["token_texts"] = list(token_texts)
        figures["trace"] = [
            record.to_dict() | {"segment": segment, "text": "".join(_emitted(record, token_texts))}
            for record, segment in zip(rounds, labels, strict=True)
        ]
    return figures


def all_figures(
    records: Sequence[RoundRecord],
    answers: Sequence[tuple[Sequence[int], Sequence[str]]],
    *,
    with_trace: bool,
) -> dict[str, Any]:
    """Return the figures of a request; with several answers their sum, and each one's under ``choices``.

    ``answers``: token ids and texts of each. vLLM runs several answers as requests of their own, whose ids
    begin with the answer's number.
    """
    if len(answers) == 1:
        return answer_figures(records, *answers[0], with_trace=with_trace)
    own = [[record for record in records if record.request_id.startswith(f"{i}_")] for i in range(len(answers))]
    choices = [
        answer_figures(rounds, *answer, with_trace=with_trace) for rounds, answer in zip(own, answers, strict=True)
    ]
    return summarize([record for rounds in own for record in rounds]) | {"choices": choices}


def clip(records: Sequence[RoundRecord], tokens: int) -> list[RoundRecord]:
    """Leave out rounds that begin past the answer's ``tokens``, and accepted tokens that lie past it."""
    kept = [record for record in records if record.position < tokens]
    for record in kept:
        record.accepted = min(record.accepted, tokens - record.position - 1)
    return kept


def _emitted(record: RoundRecord, token_texts: Sequence[str]) -> Sequence[str]:
    return token_texts[record.position : record.position + record.accepted + 1]
