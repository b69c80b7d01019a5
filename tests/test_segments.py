"""The segment scanner: worked examples first, then properties that hold for any text."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiflash_engine.segments import SEGMENTS, Segment, label_rounds, per_segment, segment_spans
from whiflash_engine.trace import RoundRecord

UNIFIED = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n b = 3\n"
SEARCH_REPLACE = "<<<<<<< SEARCH\na = 1\n=======\na = 2\n>>>>>>> REPLACE\n"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'

# Pieces that mean something to the scanner, so that random text hits its branches.
PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "```",
    "```python\n",
    "~~~~diff\n",
    "  ```\n",
    "<<<<<<< SEARCH\n",
    ">>>>>>> REPLACE\n",
    "--- a/f\n+++ b/f\n",
    "@@ -1 +1 @@\n",
    "diff --git a/f b/f\n",
    '{"a": [1, "}"',
    "}",
    "[",
    "\n",
    " ",
    "+x\n",
    "- item\n",
    "word",
    "\\",
    '"',
    "é🙂",
]
any_text = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4))).map("".join))


def labelled(text: str) -> list[tuple[str, Segment]]:
    return [(text[span.start : span.end], span.segment) for span in segment_spans(text)]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([("Just words.\n", "prose")], id="prose"),
        pytest.param([("<think>\nhm {\n</think>\n", "reasoning"), ("\nSo.", "prose")], id="think"),
        pytest.param([("hm, the tag was in the prompt</think>", "reasoning"), ("Yes", "prose")], id="no opener"),
        pytest.param([("<think>never closed ```x\n", "reasoning")], id="think cut off"),
        pytest.param([("I look.\n", "prose"), (CALL, "tool_json")], id="tool call"),
        pytest.param([(CALL + "\n" + CALL, "tool_json")], id="two calls"),
        pytest.param([("Ok ", "prose"), (CALL[:30], "tool_json")], id="tool call cut off"),
        pytest.param([(CALL, "tool_json"), (" then", "prose")], id="text after a call"),
        pytest.param([('{"name": "f", "arguments": {}}', "tool_json")], id="bare object"),
        pytest.param([('[{"name": "f", "parameters": {"s": "]"}}]<|im_end|>', "tool_json")], id="bare array"),
        pytest.param([('{"command": "cat <<EOF\\n```', "tool_json")], id="bare JSON cut off in a string"),
        pytest.param([("<think>x</think>\n", "reasoning"), ('{"a": 1}\n', "tool_json")], id="think, JSON"),
        pytest.param([('{"a": 1} is JSON', "prose")], id="JSON, then words"),
        pytest.param([('{"a": 1,, }', "prose")], id="not JSON"),
        pytest.param([("[1] Smith", "prose")], id="a footnote"),
        pytest.param([("See:\n", "prose"), ("```python\nx = 1\n```\n", "code"), ("Done", "prose")], id="code"),
        pytest.param([("```\n<tool_call>\n```\n", "code")], id="content of a fence is opaque"),
        pytest.param([("````md\n```py\n```\n````\n", "code"), ("a", "prose")], id="longer fence"),
        pytest.param([("Use ```x``` here\n", "prose")], id="inline ticks"),
        pytest.param([("1. so\n", "prose"), ("   ```py\n   x\n   ```\n", "code")], id="indented fence"),
        pytest.param([("```py\nx = ", "code")], id="code cut off"),
        pytest.param([("```diff\n-a\n+b\n```", "diff")], id="diff fence"),
        pytest.param([("~~~patch\n-a\n", "diff")], id="patch fence cut off"),
        pytest.param([(f"```\n{UNIFIED}```\n", "diff")], id="fence that holds a diff"),
        pytest.param([(f"```python\n{SEARCH_REPLACE}```\n", "diff")], id="fence that holds search/replace"),
        pytest.param([("x.py\n", "prose"), (SEARCH_REPLACE, "diff"), ("ok", "prose")], id="search/replace"),
        pytest.param([(SEARCH_REPLACE[:30], "diff")], id="search/replace cut off"),
        pytest.param([("Fix:\n", "prose"), (UNIFIED, "diff"), ("\nDone.", "prose")], id="bare diff"),
        pytest.param([(UNIFIED + "\n c = 4\n", "diff")], id="blank line inside a diff"),
        pytest.param([("diff --git a/f b/f\nindex 1f..2e 100644\n" + UNIFIED, "diff")], id="git diff"),
        pytest.param([("@@ -3 +3 @@\n-a\n+b", "diff")], id="hunk alone"),
        pytest.param([("--- \ntitle\n---\n", "prose")], id="a Markdown rule"),
        pytest.param([], id="empty"),
    ],
)
def test_examples(pieces: list[tuple[str, Segment]]) -> None:
    assert labelled("".join(text for text, _ in pieces)) == pieces


@settings(deadline=None)
@given(any_text)
def test_spans_partition_any_text(text: str) -> None:
    spans = segment_spans(text)
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert (spans[-1].end if spans else 0) == len(text)
    assert all(span.start < span.end and span.segment in SEGMENTS for span in spans)
    assert all(a.segment != b.segment for a, b in pairwise(spans))


@settings(deadline=None)
@given(any_text)
def test_scanning_twice_gives_the_same(text: str) -> None:
    assert segment_spans(text) == segment_spans(text)


@settings(deadline=None)
@given(any_text, st.lists(st.integers(min_value=0, max_value=200)))
def test_any_tokenization_labels_like_the_text(text: str, cuts: list[int]) -> None:
    """However the text is cut into tokens (empty ones too), a token has its first character's segment."""
    bounds = sorted([*(min(cut, len(text)) for cut in cuts), 0, len(text)])
    tokens = [text[a:b] for a, b in pairwise(bounds)]
    assert "".join(tokens) == text
    by_character = [span.segment for span in segment_spans(text) for _ in range(span.start, span.end)]
    rounds = [record(position=index) for index in range(len(tokens))]
    expected = [(by_character or ["prose"])[min(at, len(text) - 1)] for at in bounds[:-1]]
    assert label_rounds(rounds, tokens) == expected


@settings(deadline=None)
@given(any_text, st.lists(st.integers(min_value=0, max_value=60), max_size=12))
def test_per_segment_adds_up(text: str, positions: list[int]) -> None:
    tokens = list(text)
    rounds = [record(position=at, drafted=4, accepted=at % 5) for at in positions]
    figures = per_segment(rounds, tokens)
    assert sum(f["tokens"] for f in figures.values()) == len(tokens)
    for key in ("rounds", "drafted", "accepted"):
        assert sum(f[key] for f in figures.values()) == sum(
            d[key] for f in figures.values() for d in f["by_drafter"].values()
        )
    assert sum(f["rounds"] for f in figures.values()) == len(rounds)


def test_a_round_belongs_to_its_first_token() -> None:
    # 0 is prefill's token; the round at 1 starts in prose and runs into the call.
    tokens = ["I ", "look", ".\n", "<tool_call>", "\n{", '"name": "f"}', "\n</tool_call>"]
    assert label_rounds([record(position=1), record(position=4)], tokens) == ["prose", "tool_json"]


def test_a_token_without_text_belongs_to_the_character_that_follows() -> None:
    assert label_rounds([record(position=1)], ["Hi ", "", "<tool_call>"]) == ["tool_json"]


def test_rounds_past_the_end_belong_to_the_last_segment() -> None:
    assert label_rounds([record(position=9)], ["Hi ", "<tool_call>"]) == ["tool_json"]
    assert label_rounds([record(position=1)], []) == ["prose"]


def test_per_segment_figures() -> None:
    tokens = ["So", ":\n", "```py\n", "x", " = 1", "\n```"]
    rounds = [
        record(position=1, drafter="eagle3", drafted=4, accepted=1),
        record(position=3, drafter="eagle3", drafted=4, accepted=0),
        record(position=4, drafter="dflash", drafted=7, accepted=3),
    ]
    assert per_segment(rounds, tokens) == {
        "prose": {
            "tokens": 2,
            **figures(1, 4, 1, 2.0),
            "by_drafter": {"eagle3": figures(1, 4, 1, 2.0)},
        },
        "code": {
            "tokens": 4,
            **figures(2, 11, 3, 2.5),
            "by_drafter": {"dflash": figures(1, 7, 3, 4.0), "eagle3": figures(1, 4, 0, 1.0)},
        },
    }


def test_a_segment_may_have_tokens_but_no_round() -> None:
    assert per_segment([], ["Hi"]) == {"prose": {"tokens": 1, **figures(0, 0, 0, None), "by_drafter": {}}}


def figures(rounds: int, drafted: int, accepted: int, length: float | None) -> dict[str, object]:
    return {"rounds": rounds, "drafted": drafted, "accepted": accepted, "mean_acceptance_length": length}


def record(position: int, drafter: str = "eagle3", drafted: int = 0, accepted: int = 0) -> RoundRecord:
    return RoundRecord("r", 0, position, drafter, "entropy", drafted=drafted, accepted=accepted)
