"""The report as one HTML page: the tables of the console, charts, and one answer per arm token by token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from whiflash_harnesses.bench.console import (
    ARM_TABLES,
    OVERALL,
    Cell,
    difference_lines,
    extra_tables,
    segment_cell,
)
from whiflash_harnesses.bench.figures import OFF, PHASES
from whiflash_harnesses.report.charts import Bar, bar_rows, legend, share_lines
from whiflash_harnesses.report.page import Table, flat, render_page
from whiflash_harnesses.report.tokens import read_runs

_TEMPLATE = Path(__file__).with_name("templates") / "bench.html"
Parts = dict[str, dict[str, Any]]
"""Workload (or all together) -> its part of the report."""


def bench_page(report: dict[str, Any]) -> str:
    """Return the page of a report (``whiflash-bench/1``)."""
    parts: Parts = {**report["workloads"], OVERALL: report["overall"]}
    return render_page(
        _TEMPLATE,
        title="WhiFlash bench",
        identical=report["overall"]["identical_to_off"],
        differences=difference_lines(report),
        facts=_facts(report),
        tables=[
            *(_arm_table(title, columns, parts) for title, columns in ARM_TABLES.items()),
            _segment_table(parts),
            *(Table(*table, labels=2) for table in extra_tables(report)),
        ],
        speed=_speed_chart(parts),
        drafters_legend=legend(_drafters(parts)),
        shares=_share_chart(parts),
        acceptance=_acceptance_charts(parts),
        arms_legend=legend(list(report["overall"]["arms"])),
        profile=_profile_chart(parts),
        examples=_examples(report.get("examples") or {}),
    )


def _facts(report: dict[str, Any]) -> list[Table]:
    names = ("versions", "machine", "settings", "config")
    tables = [Table(name, ("name", "value"), list(flat(report[name] or {}))) for name in names]
    rest = {"schema": report["schema"], "memory_mb": report["memory_mb"]}
    return [*tables, Table("report", ("name", "value"), list(flat(rest)))]


# Tables


def _arm_table(title: str, columns: dict[str, Cell], parts: Parts) -> Table:
    rows = [
        (name, arm, *(cell(arm, figures, part) for cell in columns.values()))
        for name, part in parts.items()
        for arm, figures in part["arms"].items()
    ]
    return Table(title, ("workload", "arm", *columns), rows, labels=2)


def _segment_table(parts: Parts) -> Table:
    segments = sorted(
        {name for part in parts.values() for f in part["arms"].values() for name in f["per_segment"]}
    )
    rows = [
        (name, arm, *(segment_cell(figures["per_segment"].get(segment)) for segment in segments))
        for name, part in parts.items()
        for arm, figures in part["arms"].items()
    ]
    return Table("Acceptance length (rounds) by segment", ("workload", "arm", *segments), rows, labels=2)


# Charts


def _speed_chart(parts: Parts) -> Markup | None:
    """Draw speed against ``off``; ``None`` if ``off`` did not run."""
    if OFF not in parts[OVERALL]["arms"]:
        return None
    ratio_cell, speed_cell = (ARM_TABLES["Speed"][name] for name in (f"vs {OFF}", "tok/s"))
    groups = {
        f"{name} ({OFF}: {speed_cell(OFF, part['arms'][OFF], part)} tok/s)": [
            _ratio_bar(arm, part["ratios"][arm].get(f"vs_{OFF}"), ratio_cell(arm, figures, part))
            for arm, figures in part["arms"].items()
            if arm != OFF
        ]
        for name, part in parts.items()
    }
    return bar_rows("Tokens per second against off", groups, unit="×", reference=1.0)


def _ratio_bar(arm: str, ratio: dict[str, float] | None, text: str) -> Bar:
    if ratio is None:
        return Bar(arm, (), text)
    return Bar(arm, [(arm, ratio["median"])], text, ratio["p25"], ratio["p75"])


def _share_chart(parts: Parts) -> Markup:
    groups = {
        name: [
            Bar(arm, [(drafter, 100 * share) for drafter, share in shares.items()], _share_text(shares))
            for arm, shares in ((arm, f["share_by_drafter"]) for arm, f in part["arms"].items())
        ]
        for name, part in parts.items()
    }
    return bar_rows("Share of rounds per drafter", groups, unit="%")


def _drafters(parts: Parts) -> list[str]:
    return sorted(
        {name for part in parts.values() for f in part["arms"].values() for name in f["share_by_drafter"]}
    )


def _share_text(shares: dict[str, float]) -> str:
    return ", ".join(f"{drafter} {share:.0%}" for drafter, share in shares.items()) or "-"


def _acceptance_charts(parts: Parts) -> list[tuple[str, Markup]]:
    """Draw one chart per workload, of the arms that drafted."""
    return [
        (
            name,
            share_lines(
                f"Acceptance by draft position, {name}",
                {arm: f["acceptance_by_position"] for arm, f in part["arms"].items() if f["drafted"]},
                "draft position",
            ),
        )
        for name, part in reversed(parts.items())
    ]


def _profile_chart(parts: Parts) -> Markup:
    groups = {
        name: [
            Bar(
                arm,
                list(_phases_ms(figures["round_profile"])),
                ARM_TABLES["One round, ms"]["round"](arm, figures, part),
            )
            for arm, figures in part["arms"].items()
        ]
        for name, part in parts.items()
    }
    return legend([_phase_name(phase) for phase in _PHASES]) + bar_rows("One round", groups, unit=" ms")


_PHASES = (*PHASES, "overhead")


def _phase_name(phase: str) -> str:
    return phase.replace("_", "-")


def _phases_ms(profile: dict[str, float] | None) -> Iterator[tuple[str, float]]:
    if profile:
        yield from ((_phase_name(phase), 1000 * profile[f"{phase}_s"]) for phase in _PHASES)


# Per-token view


def _examples(examples: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        workload: [_example(arm, example) for arm, example in by_arm.items()]
        for workload, by_arm in examples.items()
    }


def _example(arm: str, example: dict[str, Any]) -> dict[str, Any]:
    return {
        "arm": arm,
        "request": example["request"],
        "tokens": len(example["tokens"]),
        "rounds": len(example["rounds"]),
        "runs": read_runs(example["tokens"], example["rounds"]),
    }
