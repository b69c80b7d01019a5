"""Shows the figures of a run as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_WORK = ("resolved", "exit", "steps", "bad calls", "patch lines")
_COST = ("tokens\nin", "tokens\ncached", "tokens\nout", "generation\ns", "tool\ns", "tok/s")


def render(report: Mapping[str, Any], console: Console) -> None:
    """Print tasks, drafters and segments, and what to make of the result. Fits a terminal of 80 columns."""
    config = report["config"]
    console.print(_work(report, f"SWE-bench: {config['model']}, router {config['router'] or 'default'}"))
    console.print(_cost(report))
    console.print(_drafters(report["overall"]["drafting"]))
    for line in _remarks(report):
        console.print(line, highlight=False, markup=False)


def _table(title: str, first: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("exit", "drafter") else "right")
    return table


def _work(report: Mapping[str, Any], title: str) -> Table:
    table = _table(title, "task", _WORK)
    for name, figures in report["instances"].items():
        counts = (str(figures[key]) for key in ("steps", "malformed_calls", "patch_lines"))
        table.add_row(name, _yes_no(figures["resolved"]), str(figures["exit_status"]), *counts)
    overall = report["overall"]
    table.add_section()
    resolved = f"{overall['resolved']}/{overall['evaluated']}"
    table.add_row("all", resolved, "", str(overall["steps"]), str(overall["malformed_calls"]), "")
    return table


def _cost(report: Mapping[str, Any]) -> Table:
    table = _table("Tokens and time", "task", _COST)
    for name, figures in report["instances"].items():
        table.add_row(name, *_cost_cells(figures))
    table.add_section()
    table.add_row("all", *_cost_cells(report["overall"]))
    return table


def _cost_cells(figures: Mapping[str, Any]) -> list[str]:
    counts = (str(figures[key]) for key in ("input_tokens", "cached_tokens", "output_tokens"))
    return [*counts, *(_decimal(figures[key], 1) for key in ("generation_s", "tool_s", "tok_s"))]


def _drafters(drafting: Mapping[str, Any]) -> Table:
    """One row per segment and drafter, then one per drafter over all segments."""
    columns = ("drafter", "rounds", "drafted", "accepted", "acceptance length")
    table = _table("Drafting: what was proposed, what was accepted, by which drafter", "segment", columns)
    for segment, figures in drafting["per_segment"].items():
        _add_rows(table, segment, figures["by_drafter"])
        table.add_section()
    _add_rows(table, "all", drafting["by_drafter"])
    table.add_row("all", "all", *_counts(drafting))
    return table


def _add_rows(table: Table, segment: str, by_drafter: Mapping[str, Any]) -> None:
    for drafter, figures in by_drafter.items():
        table.add_row(segment, drafter, *_counts(figures))


def _counts(figures: Mapping[str, Any]) -> list[str]:
    counts = [str(figures[key]) for key in ("rounds", "drafted", "accepted")]
    return [*counts, _decimal(figures["mean_acceptance_length"], 2)]


def _remarks(report: Mapping[str, Any]) -> list[str]:
    overall = report["overall"]
    lines = []
    if overall["cut_replies"]:
        lines.append(f"{overall['cut_replies']} replies ended at their length limit (finish_reason length).")
    if not overall["drafting"]["rounds"]:
        lines.append("The model reported no drafting figures.")
    if overall["evaluated"] < overall["instances"]:
        lines.append("Not evaluated yet: run `evaluate` on this folder.")
    elif overall["resolved"] < overall["instances"]:
        lines.append(_unresolved(str(report["config"]["model"])))
    return lines


def _unresolved(model: str) -> str:
    if "135m" in model.lower():
        return (
            "Not resolved, as is to be expected: a model of 135M parameters rarely mends a real bug. "
            "The run shows the pipeline and the drafting, not the skill of the model."
        )
    return "Not all tasks are resolved; the trajectories say how each went."


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[value]


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
