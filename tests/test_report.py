"""The HTML report: the JSON's figures, every token once, nothing that a model wrote taken for markup."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from test_bench import ScriptedService, group, record, run_cli, service

from whiflash_engine.segments import per_segment
from whiflash_engine.trace import RoundRecord
from whiflash_harnesses.bench import runner
from whiflash_harnesses.bench.console import ARM_TABLES, OVERALL
from whiflash_harnesses.bench.figures import Group, Sample
from whiflash_harnesses.bench.html import bench_page
from whiflash_harnesses.bench.runner import BenchOptions
from whiflash_harnesses.report.charts import Bar, bar_rows, share_lines
from whiflash_harnesses.report.colours import colour
from whiflash_harnesses.report.tokens import read_runs, token_runs

__all__ = ["service"]  # the fixture

ARMS = ("off", "eagle3", "ngram", "entropy")
HOSTILE = '</span><script>alert("x")</script>\'"&amp;'
TEXTS = ["So", "\n", HOSTILE, "", "\x00\x1b[2J", "\ud800", "http://evil.example/x.js", " = ", "1"]
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Reads a page: its tables, the texts of its SVG, its token spans, and whether its tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.svg: list[str] = []
        self.answers: list[list[tuple[str, str, str]]] = []
        """Per answer: (kind, text, title of its round) of every token, the rejected ones too."""
        self._table: list[list[str]] = []
        self.feed(html)
        self.close()
        self.problems += [f"never closed: {tag}" for tag, _ in self.open]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
        if tag == "table":
            self._table = []
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th"):
            self._table[-1].append("")
        if dict(attrs).get("class") == "tokens":
            self.answers.append([])

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            self.problems.append(f"</{tag}> at {self.getpos()} closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if "caption" in tags:
            self.tables[data] = self._table
        elif tags[-1:] in (["td"], ["th"]):
            self._table[-1][-1] += data
        elif "svg" in tags and data.strip():
            self.svg.append(data)
        elif any(attrs.get("class") == "tokens" for _, attrs in self.open):
            kind = str(self.open[-1][1].get("class")).removeprefix("t ")
            self.answers[-1].append((kind, data, str(self.open[-2][1].get("title"))))


def rounds_of(arm: str, tokens: int) -> tuple[RoundRecord, ...]:
    """Rounds over ``tokens``: ``off`` one by one, the others with one accepted draft each."""
    step, drafter = (1, "none") if arm == "off" else (2, "eagle3" if arm == "entropy" else arm)
    return tuple(
        RoundRecord(
            "r", number, at, drafter, arm, 0 if arm == "off" else 4, min(step, tokens - at) - 1,
            {"entropy": 1.25} if arm == "entropy" else {}, verify_s=0.03125, draft_s=0.0078125,
        )
        for number, at in enumerate(range(1, tokens, step))
    )  # fmt: skip


def sample(workload: str, arm: str, request: str, decode_s: float, tokens: int = len(TEXTS)) -> Sample:
    rounds = rounds_of(arm, tokens)
    segments = per_segment(rounds, TEXTS[:tokens])
    return Sample(
        workload, request, arm, tokens, 0.25, decode_s, tuple(range(tokens)), TEXTS[:tokens], rounds, segments
    )


def report_of(groups: list[Group], arms: tuple[str, ...] = ARMS) -> dict[str, Any]:
    options = BenchOptions(workloads=("code", "chat"), arms=arms, requests=2)
    description = {
        "versions": {"vllm": "0.1", "zentorch": None},
        "machine": {"cores": 2},
        "config": {"a": {"b": 3}},
    }
    return runner.build_report(groups, options, description)


def groups_of(arms: tuple[str, ...] = ARMS) -> list[Group]:
    return [
        group(sample(workload, arm, request, decode_s / (1 + ARMS.index(arm) * factor)), seconds=decode_s + 0.25)
        for workload, factor in (("code", 0.5), ("chat", 0.25))
        for request, decode_s in (("a", 1.0), ("b", 2.5))
        for arm in arms
    ]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_of(groups_of())


@pytest.fixture(scope="module")
def html(report: dict[str, Any]) -> str:
    return bench_page(report)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


# ---- the page as a whole --------------------------------------------------------------------------


def test_tags_are_balanced(page: Page) -> None:
    assert page.problems == []
    assert {"html", "head", "body", "svg", "table"} <= {tag for tag, _ in page.tags}


def test_nothing_comes_from_elsewhere_and_nothing_runs(page: Page, html: str) -> None:
    names = {name for _, attrs in page.tags for name in attrs}
    assert not names & {"src", "srcset", "xlink:href", "onload", "onclick", "onmouseover"}
    assert {attrs["href"] for _, attrs in page.tags if "href" in attrs} == {
        "#figures",
        "#charts",
        "#tokens",
        "#setup",
    }
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base"}
    style = html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_links_point_into_the_page(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {str(attrs["href"]).removeprefix("#") for _, attrs in page.tags if "href" in attrs} <= ids


def test_head_says_what_ran_on_what(page: Page) -> None:
    assert ["vllm", "0.1"] in page.tables["versions"]
    assert ["zentorch", "-"] in page.tables["versions"]
    assert ["cores", "2"] in page.tables["machine"]
    assert ["a.b", "3"] in page.tables["config"]
    assert ["arms", "off, eagle3, ngram, entropy"] in page.tables["settings"]


# ---- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ARM_TABLES)
def test_tables_have_a_row_per_workload_and_arm(title: str, page: Page) -> None:
    head, *rows = page.tables[title]
    assert head == ["workload", "arm", *ARM_TABLES[title]]
    assert [row[:2] for row in rows] == [[name, arm] for name in ("code", "chat", OVERALL) for arm in ARMS]


def cells(page: Page, title: str, workload: str, arm: str) -> dict[str, str]:
    head, *rows = page.tables[title]
    return next(dict(zip(head, row, strict=True)) for row in rows if row[:2] == [workload, arm])


@pytest.mark.parametrize("workload", ["code", "chat", OVERALL])
@pytest.mark.parametrize("arm", ARMS)
def test_figures_are_those_of_the_json(report: dict[str, Any], page: Page, workload: str, arm: str) -> None:
    part = report["overall"] if workload == OVERALL else report["workloads"][workload]
    figures = part["arms"][arm]
    speed, drafting, profile = (cells(page, title, workload, arm) for title in ARM_TABLES)
    assert [speed["tok/s"], speed["ITL ms"]] == [f"{figures[key]:.1f}" for key in ("tok_s", "itl_ms")]
    assert [speed["requests"], speed["tokens"]] == [str(figures["requests"]), str(figures["output_tokens"])]
    assert speed["text as off"] == "yes"
    if arm == "off":
        assert speed["vs off"] == "-"
    else:
        ratio = part["ratios"][arm]["vs_off"]
        assert speed["vs off"] == f"{ratio['median']:.2f} ({ratio['p25']:.2f}-{ratio['p75']:.2f})"
    assert speed["vs dflash"] == "-"  # it did not run
    counts = [str(figures[key]) for key in ("rounds", "drafted", "accepted")]
    assert [drafting[key] for key in ("rounds", "drafted", "accepted")] == counts
    assert drafting["length"] == f"{figures['mean_acceptance_length']:.2f}"
    assert profile["verify"] == f"{31.25:.1f}"
    assert profile["round"] == f"{1000 * figures['round_profile']['round_s']:.1f}"


def test_segments(report: dict[str, Any], page: Page) -> None:
    figures = report["workloads"]["chat"]["arms"]["entropy"]["per_segment"]["prose"]
    row = cells(page, "Acceptance length (rounds) by segment", "chat", "entropy")
    assert row["prose"] == f"{figures['mean_acceptance_length']:.2f} ({figures['rounds']})"


def test_missing_figures_are_a_dash() -> None:
    """One token per request, no rounds: nothing between tokens, no means, no profile, nothing to draw."""
    groups = [
        group(Sample(workload, "a", arm, 1, 0.25, 0.0, token_ids=(0,)))
        for workload in ("code", "chat")
        for arm in ARMS
    ]
    page = Page(bench_page(report_of(groups)))
    assert page.problems == []
    assert cells(page, "Speed", "code", "eagle3")["ITL ms"] == "-"
    assert cells(page, "Speed", "code", "eagle3")["vs off"] == "-"
    assert cells(page, "Drafting", "code", "eagle3")["length"] == "-"
    assert set(page.tables["One round, ms"][1][2:]) == {"-"}
    assert "-" in page.svg
    assert not [text for text in page.svg if "None" in text or "nan" in text]


def test_without_off_the_page_says_so() -> None:
    arms = ("eagle3", "entropy")
    html = bench_page(report_of(groups_of(arms), arms))
    assert "compared with nothing" in html
    assert "-: the arm <code>off</code> did not run." in html
    assert Page(html).problems == []


def test_a_difference_from_off_stands_at_the_top() -> None:
    groups = groups_of()
    wrong = Sample("chat", "b", "ngram", 3, 0.25, 1.0, token_ids=(0, 1, 3))
    html = bench_page(
        report_of([*(g for g in groups if g.samples[0].request != "b"), *others_b(groups), group(wrong)])
    )
    assert '<p class="bad">output differs from `off`: chat/b under ngram, from output token 2 on</p>' in html
    assert "tokens equal those of" not in html


def others_b(groups: list[Group]) -> list[Group]:
    return [
        g for g in groups
        if g.samples[0].request == "b" and (g.arm, g.samples[0].workload) != ("ngram", "chat")
    ]  # fmt: skip


# ---- charts ---------------------------------------------------------------------------------------


def test_charts_have_the_values(report: dict[str, Any], page: Page) -> None:
    figures = report["workloads"]["code"]["arms"]["entropy"]
    ratio = report["workloads"]["code"]["ratios"]["entropy"]["vs_off"]
    assert f"entropy: {ratio['median']:.4g}×" in page.svg
    assert f"{ratio['median']:.2f} ({ratio['p25']:.2f}-{ratio['p75']:.2f})" in page.svg
    assert "entropy, eagle3: 100%" in page.svg
    assert "eagle3 100%" in page.svg
    assert f"entropy, position 1: {figures['acceptance_by_position'][0]:.2f}" in page.svg
    assert "entropy, verify: 31.25 ms" in page.svg
    assert f"{1000 * figures['round_profile']['round_s']:.1f}" in page.svg


def test_bars_are_as_long_as_their_values() -> None:
    groups = {
        "g": [Bar("a", [("x", 10.0), ("y", 20.0)], "30"), Bar("b", [("x", 40.0)], "40", low=35.0, high=45.0)]
    }
    chart = Page(str(bar_rows("name", groups)))
    bars = [attrs for tag, attrs in chart.tags if tag == "rect"]
    widths = [float(str(bar["width"])) for bar in bars]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert widths[2] == pytest.approx(4 * widths[0], abs=0.3)
    assert float(str(bars[1]["x"])) == pytest.approx(float(str(bars[0]["x"])) + widths[0], abs=0.2)  # stacked
    whiskers = [attrs for tag, attrs in chart.tags if tag == "line" and attrs["class"] == "whisker"]
    ends = [float(str(whiskers[0][key])) - float(str(bars[2]["x"])) for key in ("x1", "x2")]
    assert ends == pytest.approx([widths[2] * 35 / 40, widths[2] * 45 / 40], abs=0.3)


@given(
    st.lists(st.floats(0, 1e6, allow_nan=False), max_size=4),
    st.lists(st.floats(0, 1), max_size=12),
    st.none() | st.floats(0, 100),
)
def test_any_values_make_a_chart_that_stays_inside(
    values: list[float], shares: list[float], reference: float | None
) -> None:
    bars = [Bar(f"b{i}", [("x", value)], "t") for i, value in enumerate(values)]
    for chart in (
        bar_rows("rows", {"g": bars}, reference=reference),
        share_lines("lines", {"s": shares, "none": []}, "position"),
    ):
        page = Page(str(chart))
        assert page.problems == []
        width = float(str(page.tags[0][1]["width"]))
        for _, attrs in page.tags:
            left = [float(str(attrs[key])) for key in ("x", "x1", "x2", "cx") if key in attrs]
            assert all(0 <= x <= width for x in left)


def test_names_in_charts_are_escaped() -> None:
    charts = bar_rows(HOSTILE, {HOSTILE: [Bar(HOSTILE, [(HOSTILE, 1.0)], HOSTILE)]}) + share_lines(
        HOSTILE, {HOSTILE: [0.5, 0.25]}, HOSTILE
    )
    assert isinstance(charts, Markup)
    page = Page(str(charts))
    assert page.problems == []
    assert "script" not in {tag for tag, _ in page.tags}
    assert HOSTILE in page.svg


def test_colours_are_stable_and_differ() -> None:
    names = ["off", "eagle3", "dflash", "ngram", "entropy", "neural", "cost", "suffix", "a router of tomorrow"]
    assert len({colour(name) for name in names}) == len(names)
    assert colour("off") == colour("none")
    channels = [int(part) for part in colour("suffix").split()]
    assert len(channels) == 3 and all(0 <= channel <= 255 for channel in channels)


# ---- token by token -------------------------------------------------------------------------------


def test_every_answer_has_every_token_once_with_its_kind(page: Page) -> None:
    assert len(page.answers) == 2 * len(ARMS)
    entropy = page.answers[3]
    tokens = [(kind, text) for kind, text, _ in entropy]
    assert tokens == [
        ("unrecorded", "So"),
        ("accepted", "↵\n"), ("bonus", HOSTILE), ("rejected", "3"),
        ("accepted", "∅"), ("bonus", "␀␛[2J"), ("rejected", "3"),
        ("accepted", "\ufffd"), ("bonus", "http://evil.example/x.js"), ("rejected", "3"),
        ("accepted", " = "), ("bonus", "1"), ("rejected", "3"),
    ]  # fmt: skip
    assert entropy[1][2] == "eagle3, round 0: 1 of 4 draft tokens accepted; router entropy (entropy 1.25)"
    off = page.answers[0]
    assert [kind for kind, _, _ in off] == ["unrecorded", *["bonus"] * 8]
    assert off[1][2] == "none, round 0: no draft; router off"


def test_what_a_model_wrote_is_text(html: str, page: Page) -> None:
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    html.encode("utf-8")
    assert not [c for c in html if ord(c) < 0x20 and c not in "\n\t"]


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 40), st.sets(st.integers(0, 7)))
def test_runs_cover_the_answer(accepted: list[int], tokens: int, lost: set[int]) -> None:
    """Also where records are missing (a preempted request) or reach past the end (a stop string)."""
    records, at = [], 1
    for index, count in enumerate(accepted):
        if index not in lost:
            records.append(record("dflash", 5, count, position=at))
        at += count + 1
    texts = [f"t{index};" for index in range(tokens)]
    runs = list(token_runs(texts, records))
    assert "".join(run.text for run in runs) == "".join(texts)
    assert all(run.rejected == 5 - run.record.accepted for run in runs if run.record)


def test_round_table_says_it_without_a_pointer(page: Page, html: str) -> None:
    assert html.count("<summary>Rounds as a table</summary>") == 2 * len(ARMS)
    runs = read_runs(["a", "b"], [record("ngram", 3, 0, signal={"match": 4.0, "tok_s": 31.234}).to_dict()])
    assert (runs[1].signal, runs[1].rejected) == ("match 4, tok_s 31.2", 3)


def test_examples_are_the_first_measured_request(report: dict[str, Any]) -> None:
    assert {w: set(arms) for w, arms in report["examples"].items()} == {"code": set(ARMS), "chat": set(ARMS)}
    example = report["examples"]["chat"]["ngram"]
    assert example["request"] == "a"
    assert example["tokens"] == TEXTS
    assert [RoundRecord.from_dict(entry) for entry in example["rounds"]] == list(rounds_of("ngram", len(TEXTS)))


# ---- command line ---------------------------------------------------------------------------------


def test_bench_writes_the_page(service: ScriptedService, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    result: typer.testing.Result = run_cli("--quick", "--workload", "code", "--html", str(path))
    assert result.exit_code == 0, result.output
    assert f"written: {path}" in result.stdout
    assert list(tmp_path.iterdir()) == [path]
    page = Page(path.read_text(encoding="utf-8"))
    assert page.problems == []
    assert len(page.answers) == len(runner.ARMS)
    assert ("accepted", "x") in {(kind, text) for kind, text, _ in page.answers[1]}
