"""Which part of an answer a round belongs to: reasoning, prose, a tool call's JSON, code, or a diff.

A small deterministic scanner over the generated text, run after the fact and never in the decoding path::

    text -> leading reasoning -> rest is one JSON value?  tool_json
                              -> otherwise block by block, the opener that comes first wins; its content is
                                 opaque until its closer, or the end of a text that was cut off
                              -> whatever lies between blocks is prose

The line break that ends a block's last line belongs to the block. A bare diff (no fence) ends at the first
line that no diff line starts like, so a Markdown list right below one is read as removed lines.
"""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, get_args

from whiflash_engine.trace import RoundRecord, mean_acceptance_length

Segment = Literal["reasoning", "prose", "tool_json", "code", "diff"]
SEGMENTS: tuple[Segment, ...] = get_args(Segment)


class Span(NamedTuple):
    """Characters ``[start, end)`` of a text and the segment they belong to."""

    start: int
    end: int
    segment: Segment


_OPENER = re.compile(
    r"""
      (?P<think> <think> )
    | (?P<tool> <tool_call> )
    | (?P<fence> ^ (?P<indent>[ \t]*) (?P<ticks> `{3,} | ~{3,}) (?P<info>[^`\n]*) (?:\n|\Z) )
    | (?P<replace> ^ <{5,9}[ ]SEARCH\b )
    | (?P<diff> ^ (?: diff[ ]--git[ ] | ---[ ]\S[^\n]*\n\+\+\+[ ]\S | @@[ ]-\d[\d,]*[ ]\+\d[\d,]*[ ]@@ ) )
    """,
    re.MULTILINE | re.VERBOSE,
)
_DIFF_CONTENT = re.compile(
    r"^(?:<{5,9} SEARCH\b|---[ \t]+\S[^\n]*\n\+\+\+[ \t]|@@ -\d[\d,]* \+\d[\d,]* @@)", re.MULTILINE
)
_DIFF_LINE = re.compile(
    r"[ +\-@\\]|diff --git |index [0-9a-f]|(?:new|deleted) file |old mode |new mode |similarity |rename "
)
_REPLACE_END = re.compile(r"^>{5,9} REPLACE\b", re.MULTILINE)
_LINE_END = re.compile(r"[ \t]*(?:\r?\n)?")
_JSON_START = re.compile(r'\s*(?:\{\s*(?:["}]|\Z)|\[\s*(?:[\[\]{"\d\-]|\Z))')
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_AFTER_JSON = re.compile(r"\s*(?:<\|?/?\w+\|?>\s*)*\Z")  # an end-of-turn token may follow
_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})


def segment_spans(text: str) -> list[Span]:
    """Cut ``text`` into spans that follow each other without a gap; neighbours differ in their segment."""
    body = _leading_reasoning_end(text)
    pieces: list[Span] = [Span(0, body, "reasoning")]
    if _is_json_answer(text[body:]):
        pieces.append(Span(body, len(text), "tool_json"))
    else:
        pieces.extend(_scan_blocks(text, body))
    return _merge(pieces)


def label_rounds(records: Sequence[RoundRecord], token_texts: Sequence[str]) -> list[Segment]:
    """Return the segment of each round's first token.

    ``token_texts`` are the texts of all output tokens of one request, in order; joined, they are its text.
    ``RoundRecord.position`` is an index into them. (Index 0 is no round: prefill emits it.) A round past the
    end, whose tokens a stop string cut off, belongs to the last segment.
    """
    of_token = _label_tokens(token_texts) or ["prose"]
    return [of_token[min(record.position, len(of_token) - 1)] for record in records]


def per_segment(records: Sequence[RoundRecord], token_texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sum up the rounds of one request by segment, and by drafter within it.

    ``tokens`` counts output tokens by their own segment, so that it adds up to the request's output; the
    other figures count rounds by the segment of their first token. Segments without a token are left out.
    """
    rounds: dict[str, list[RoundRecord]] = defaultdict(list)
    for record, segment in zip(records, label_rounds(records, token_texts), strict=True):
        rounds[segment].append(record)
    tokens = _label_tokens(token_texts)
    return {
        segment: {
            "tokens": tokens.count(segment),
            **_figures(rounds[segment]),
            "by_drafter": _by_drafter(rounds[segment]),
        }
        for segment in SEGMENTS
        if segment in tokens or rounds[segment]
    }


def _label_tokens(token_texts: Sequence[str]) -> list[Segment]:
    spans = segment_spans("".join(token_texts))
    if not spans:
        return ["prose"] * len(token_texts)
    starts = [span.start for span in spans]
    offsets = accumulate((len(token) for token in token_texts[:-1]), initial=0)
    return [spans[bisect_right(starts, offset) - 1].segment for offset in offsets]


def _figures(records: Sequence[RoundRecord]) -> dict[str, Any]:
    return {
        "rounds": len(records),
        "drafted": sum(record.drafted for record in records),
        "accepted": sum(record.accepted for record in records),
        "mean_acceptance_length": mean_acceptance_length(records),
    }


def _by_drafter(records: Sequence[RoundRecord]) -> dict[str, dict[str, Any]]:
    names = sorted({record.drafter for record in records})
    return {name: _figures([record for record in records if record.drafter == name]) for name in names}


def _merge(pieces: Sequence[Span]) -> list[Span]:
    """Drop empty pieces and join neighbours of one segment."""
    merged: list[Span] = []
    for segment, run in groupby((p for p in pieces if p.start < p.end), key=lambda piece: piece.segment):
        run_list = list(run)
        merged.append(Span(run_list[0].start, run_list[-1].end, segment))
    return merged


def _leading_reasoning_end(text: str) -> int:
    """Return where reasoning at the head of ``text`` ends; 0 if there is none.

    Some chat templates end the prompt with the opening tag, so that the answer has the closing one only.
    """
    close = text.find("</think>")
    opened = text.find("<think>")
    at_head = opened != -1 and not text[:opened].strip()
    if close != -1 and (at_head or opened == -1 or close < opened):
        return _line_end(text, close + len("</think>"))
    return len(text) if at_head else 0


def _is_json_answer(text: str) -> bool:
    """Tell whether ``text`` is one JSON object or array, whole or cut off before its end.

    Forced tool choice and structured output make such answers. Only brackets and strings are read: nothing
    may follow the bracket that closes the first one, except an end-of-turn token.
    """
    if not _JSON_START.match(text):
        return False
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return bool(_AFTER_JSON.match(text, token.end())) and _parses(text[: token.end()])
    return True


def _parses(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _scan_blocks(text: str, start: int) -> Iterator[Span]:
    position = start
    while opener := _OPENER.search(text, position):
        yield Span(position, opener.start(), "prose")
        end, segment = _BLOCKS[str(opener.lastgroup)](text, opener)
        position = _line_end(text, end)
        yield Span(opener.start(), position, segment)
    yield Span(position, len(text), "prose")


def _line_end(text: str, position: int) -> int:
    """Return ``position``, moved past blanks and one line break if nothing else is left on the line."""
    if text.endswith("\n", 0, position):
        return position
    match = _LINE_END.match(text, position)
    assert match is not None  # the pattern matches the empty string
    return match.end() if match[0].endswith("\n") or match.end() == len(text) else position


def _find_end(text: str, closer: str, position: int) -> int:
    found = text.find(closer, position)
    return len(text) if found == -1 else found + len(closer)


def _think(text: str, opener: re.Match[str]) -> tuple[int, Segment]:
    return _find_end(text, "</think>", opener.end()), "reasoning"


def _tool_call(text: str, opener: re.Match[str]) -> tuple[int, Segment]:
    return _find_end(text, "</tool_call>", opener.end()), "tool_json"


def _fence(text: str, opener: re.Match[str]) -> tuple[int, Segment]:
    """A fence closes with at least as many ticks, indented no deeper than it was opened."""
    ticks, indent = opener["ticks"], len(opener["indent"])
    closer = re.compile(rf"^[ \t]{{0,{indent}}}{re.escape(ticks[0])}{{{len(ticks)},}}[ \t\r]*$", re.MULTILINE)
    found = closer.search(text, opener.end())
    content_end, end = (found.start(), found.end()) if found else (len(text), len(text))
    language = opener["info"].strip().lower().split(" ")[0]
    is_diff = language in _DIFF_LANGUAGES or _DIFF_CONTENT.search(text, opener.end(), content_end)
    return end, "diff" if is_diff else "code"


def _search_replace(text: str, opener: re.Match[str]) -> tuple[int, Segment]:
    found = _REPLACE_END.search(text, opener.end())
    return (found.end() if found else len(text)), "diff"


def _bare_diff(text: str, opener: re.Match[str]) -> tuple[int, Segment]:
    """Blank lines inside a diff (context lines that lost their blank) count; trailing ones do not."""
    end = position = opener.start()
    while position < len(text):
        line_end = _find_end(text, "\n", position)
        if _DIFF_LINE.match(text, position):
            end = line_end
        elif text[position:line_end].strip():
            break
        position = line_end
    return max(end, opener.end()), "diff"


_BLOCKS: dict[str, Callable[[str, re.Match[str]], tuple[int, Segment]]] = {
    "think": _think,
    "tool": _tool_call,
    "fence": _fence,
    "replace": _search_replace,
    "diff": _bare_diff,
}
