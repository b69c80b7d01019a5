"""The per-token view: an answer's tokens, grouped by the round that emitted them.

A round at position p that accepted a of d draft tokens emitted the tokens p … p + a: the first a were drafted,
the last one is the target's own (the bonus token); d - a drafts were rejected. Tokens without a record (the
first one, which the prompt's own pass emits) stand alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from whiflash_engine.trace import RoundRecord
from whiflash_harnesses.report.colours import colour

ACCEPTED, BONUS, UNRECORDED = "accepted", "bonus", "unrecorded"


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one round, or one token of none."""

    tokens: Sequence[tuple[str, str]]
    """(``accepted``, ``bonus`` or ``unrecorded``; text)."""
    title: str
    colour: str
    rejected: int = 0
    record: RoundRecord | None = None

    @property
    def text(self) -> str:
        """All its tokens together."""
        return "".join(text for _, text in self.tokens)

    @property
    def signal(self) -> str:
        """What the router went by."""
        return signal_text(self.record.signal) if self.record else "-"


def read_runs(tokens: Sequence[str], rounds: Sequence[dict[str, Any]]) -> list[Run]:
    """Return the view of ``tokens`` with ``rounds`` as JSON holds them (``RoundRecord.to_dict``)."""
    return list(token_runs(tokens, [RoundRecord.from_dict(entry) for entry in rounds]))


def token_runs(tokens: Sequence[str], rounds: Sequence[RoundRecord]) -> Iterator[Run]:
    """Yield the runs in the order of the text; together they have every token once."""
    by_position = {record.position: record for record in rounds}
    at = 0
    while at < len(tokens):
        record = by_position.get(at)
        run = _unrecorded(tokens[at]) if record is None else _round_run(record, tokens)
        yield run
        at += len(run.tokens)


def _unrecorded(token: str) -> Run:
    return Run([(UNRECORDED, visible(token))], "no round: the pass over the prompt emitted it", colour("none"))


def _round_run(record: RoundRecord, tokens: Sequence[str]) -> Run:
    emitted = [visible(text) for text in tokens[record.position : record.position + record.accepted + 1]]
    kinds = [ACCEPTED] * record.accepted + [BONUS]
    return Run(
        list(zip(kinds, emitted, strict=False)),  # an answer may end within a round
        _title(record),
        colour(record.drafter),
        max(record.drafted - record.accepted, 0),
        record,
    )


def _title(record: RoundRecord) -> str:
    signal = f" ({signal_text(record.signal)})" if record.signal else ""
    switched = ", switched" if record.switched else ""
    drafted = f"{record.accepted} of {record.drafted} draft tokens accepted" if record.drafted else "no draft"
    return f"{record.drafter}, round {record.round}{switched}: {drafted}; router {record.router}{signal}"


def signal_text(signal: dict[str, float]) -> str:
    """Return a router's signal in words: ``entropy 1.25, delta_al 0.4``."""
    return ", ".join(f"{name} {value:.3g}" for name, value in signal.items()) or "-"


def visible(text: str) -> str:
    """Return a token's text with what has no shape made visible: line ends, control characters, nothing."""
    if not text:
        return "∅"
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "↵\n"
    if code < 0x20 and character != "\t":
        return chr(0x2400 + code)  # the control pictures of Unicode
    # Surrogates cannot be written as UTF-8; the other controls are errors in HTML.
    return "\ufffd" if 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 else character
