"""The report on the terminal: the figures of the JSON as tables, and progress while they are made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from whiflash_harnesses.bench.figures import PHASES, REFERENCES, Group

OVERALL = "all together"
_TABLE_WIDTH = 160
"""Columns of the tables where the output is no terminal (a file, a pipe) and has no width of its own."""


def results_console() -> Console:
    """Return the console of the tables (stdout)."""
    console = Console()
    return console if console.is_terminal else Console(width=_TABLE_WIDTH)


class PlainProgress:
    """One line per finished group: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = 0
        self._total = 0

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False)

    def begin(self, total: int) -> None:
        """Start counting."""
        self._done, self._total = 0, total

    def advance(self, group: Group) -> None:
        """Print the figures of a finished group."""
        self._done += 1
        self.note(f"[{self._done}/{self._total}] {_group_line(group)}")


class LiveProgress:
    """A bar: for terminals."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID = bar.add_task("starting", total=None)

    def note(self, text: str) -> None:
        """Print one line above the bar and show it beside the bar."""
        self._bar.console.print(text, markup=False, highlight=False)
        self._bar.update(self._task, description=text[:60])

    def begin(self, total: int) -> None:
        """Start counting."""
        self._bar.reset(self._task, total=total)

    def advance(self, group: Group) -> None:
        """Move the bar on and show the finished group."""
        self._bar.update(self._task, advance=1, description=_group_line(group))


@contextmanager
def open_progress() -> Iterator[LiveProgress | PlainProgress]:
    """Show progress on stderr while the block runs: a bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        yield PlainProgress(console)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield LiveProgress(bar)


def _group_line(group: Group) -> str:
    first = group.samples[0]
    more = f" +{len(group.samples) - 1}" if len(group.samples) > 1 else ""
    tokens = sum(sample.output_tokens for sample in group.samples)
    speed = f"{tokens / group.seconds:.1f} tok/s" if group.seconds else "-"
    return f"{first.workload}/{first.request}{more} {group.arm}: {tokens} tokens, {speed}"


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Print the tables of a report, then whether all arms gave the text of ``off``."""
    parts = {**report["workloads"], OVERALL: report["overall"]}
    for title, columns in ARM_TABLES.items():
        _print_table(console, title, _arm_table(columns, parts))
    _print_table(console, "Acceptance length (rounds) by segment, all together", _segment_table(report["overall"]))
    for title, names, rows in extra_tables(report):
        table = Table(*names, box=SIMPLE_HEAD)
        for row in rows:
            table.add_row(*row)
        _print_table(console, title, table)
    for line in difference_lines(report):
        console.print(line, markup=False, style="bold red")
    if report["overall"]["identical_to_off"] is None:
        console.print("Texts were compared with nothing: the arm `off` did not run, or decoding was not greedy.")


def _print_table(console: Console, title: str, table: Table) -> None:
    console.print(title, style="bold")  # a table's own title wraps where the table is narrower
    console.print(table)


def difference_lines(report: dict[str, Any]) -> list[str]:
    """Return one line per request whose output was not that of ``off``."""
    return [
        f"output differs from `off`: {d['workload']}/{d['request']} under {d['arm']}, "
        f"from output token {d['position']} on"
        for d in report["overall"]["differing"]
    ]


ExtraTable = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, columns, rows."""


def extra_tables(report: dict[str, Any]) -> list[ExtraTable]:
    """Return what a report says beside its arms; a table without rows is left out."""
    parts = {**report["workloads"], OVERALL: report["overall"]}
    stock = report.get("stock") or {}
    prompts = {"ours, both drafters": report.get("prompts") or {}}
    prompts |= {f"stock vLLM, {method}": of_method["prompts"] for method, of_method in stock.items()}
    tables = (_router_table(parts), _oracle_table(parts), _stock_table(stock), _prompt_table(prompts))
    return [table for table in tables if table[2]]


def _router_table(parts: dict[str, Any]) -> ExtraTable:
    rows: list[tuple[str, ...]] = [
        (name, best["arm"], router, _format(ratio, 2))
        for name, part in parts.items()
        if (best := part["best_single"])
        for router, ratio in best["over_it"].items()
    ]
    title = "Routers over the fastest single drafter (tokens per second)"
    return title, ("workload", "fastest", "router", "over it"), rows


def _oracle_table(parts: dict[str, Any]) -> ExtraTable:
    rows: list[tuple[str, ...]] = []
    for name, part in parts.items():
        if oracle := part["oracle"]:
            kinds = [oracle["per_request"], oracle["per_round"]]
            shares = ", ".join(
                f"{who} {share:.0%}" for who, share in oracle["per_round"]["share_by_drafter"].items()
            )
            rows.append((name, *(_format(kind["mean_acceptance_length"], 2) for kind in kinds), shares))
    columns = ("workload", "per request", "per round", "share of rounds, per round")
    return "Acceptance length that perfect routing would reach", columns, rows


def _stock_table(stock: dict[str, Any]) -> ExtraTable:
    rows: list[tuple[str, ...]] = [
        (method, name, _format(f["stock_tok_s"], 1), _format(f["ours_tok_s"], 1), _format(f["ratio"], 2))
        for method, of_method in stock.items()
        for name, f in of_method.items()
        if name != "prompts"
    ]
    columns = ("method", "workload", "stock", "ours", "ours over stock")
    return "Against stock vLLM with one drafter (tokens per second)", columns, rows


def _prompt_table(engines: dict[str, dict[str, Any]]) -> ExtraTable:
    """Seconds per prompt length, and each engine's over those of plain vLLM."""
    plain = engines.get("stock vLLM, off", {})
    rows: list[tuple[str, ...]] = []
    for engine, lengths in engines.items():
        for length, f in lengths.items():
            over = f["seconds"] / plain[length]["seconds"] if length in plain else None
            rows.append((engine, str(f["prompt_tokens"]), _format(f["seconds"], 2), _format(over, 2)))
    return "Prompt processing, cold", ("engine", "prompt tokens", "seconds", "over plain vLLM"), rows


Cell = Callable[[str, dict[str, Any], dict[str, Any]], str]
"""(arm, figures of the arm, figures of the whole workload) -> text of the cell."""


def _number(key: str, digits: int = 1, scale: float = 1) -> Cell:
    return lambda arm, figures, part: _format(figures[key], digits, scale)


def _format(value: float | None, digits: int, scale: float = 1) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def _ratio(reference: str) -> Cell:
    def cell(arm: str, figures: dict[str, Any], part: dict[str, Any]) -> str:
        ratio = part["ratios"][arm].get(f"vs_{reference}")
        return f"{ratio['median']:.2f} ({ratio['p25']:.2f}-{ratio['p75']:.2f})" if ratio else "-"

    return cell


def _same_text(arm: str, figures: dict[str, Any], part: dict[str, Any]) -> str:
    if part["identical_to_off"] is None:
        return "-"
    differing = sum(entry["arm"] == arm for entry in part["differing"])
    return f"NO ({differing})" if differing else "yes"


def _shares(arm: str, figures: dict[str, Any], part: dict[str, Any]) -> str:
    """Per drafter: its share of the rounds and its acceptance length."""
    lengths = figures["acceptance_by_drafter"]
    return "\n".join(
        f"{name} {share:.0%}: {_format(lengths[name]['mean_acceptance_length'], 2)}"
        for name, share in figures["share_by_drafter"].items()
    )


def _positions(arm: str, figures: dict[str, Any], part: dict[str, Any]) -> str:
    return " ".join(f"{share:.2f}".removeprefix("0") for share in figures["acceptance_by_position"])


def _phase(name: str) -> Cell:
    def cell(arm: str, figures: dict[str, Any], part: dict[str, Any]) -> str:
        profile = figures["round_profile"]
        return _format(profile[f"{name}_s"], 1, 1000) if profile else "-"

    return cell


_SPEED: dict[str, Cell] = {
    "requests": _number("requests", 0),
    "tokens": _number("output_tokens", 0),
    "seconds": _number("seconds"),
    "tok/s": _number("tok_s"),
    **{f"vs {reference}": _ratio(reference) for reference in REFERENCES},
    "TTFT ms": _number("ttft_ms", 0),
    "ITL ms": _number("itl_ms"),
    "text as off": _same_text,
}
_DRAFTING: dict[str, Cell] = {
    "rounds": _number("rounds", 0),
    "drafted": _number("drafted", 0),
    "accepted": _number("accepted", 0),
    "length": _number("mean_acceptance_length", 2),
    "share of rounds: length": _shares,
    "accepted by position": _positions,
    "switches": _number("switches", 0),
    "catch-up rows": _number("catch_up_rows", 0),
    "router %": _number("router_fraction", 2, 100),
    "switching %": _number("switch_fraction", 2, 100),
}
_ROUND: dict[str, Cell] = {
    "round": _phase("round"),
    **{name.replace("_", "-"): _phase(name) for name in PHASES},
    "overhead": _phase("overhead"),
}
ARM_TABLES = {"Speed": _SPEED, "Drafting": _DRAFTING, "One round, ms": _ROUND}
"""Title -> columns of the tables with one row per workload and arm; the HTML shows the same."""


def _arm_table(columns: dict[str, Cell], parts: dict[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in ("workload", "arm"):
        table.add_column(name)
    for name in columns:
        table.add_column(name, justify="right")
    for name, part in parts.items():
        for arm, figures in part["arms"].items():
            table.add_row(name, arm, *(cell(arm, figures, part) for cell in columns.values()))
        table.add_section()
    return table


def _segment_table(overall: dict[str, Any]) -> Table:
    """Acceptance length by segment, all workloads together."""
    segments = sorted({segment for figures in overall["arms"].values() for segment in figures["per_segment"]})
    table = Table(box=SIMPLE_HEAD)
    table.add_column("arm")
    for segment in segments:
        table.add_column(segment, justify="right")
    for arm, figures in overall["arms"].items():
        table.add_row(arm, *(segment_cell(figures["per_segment"].get(segment)) for segment in segments))
    return table


def segment_cell(figures: dict[str, Any] | None) -> str:
    """Return the acceptance length and the rounds of one segment under one arm."""
    if not figures or not figures["rounds"]:
        return "-"
    return f"{figures['mean_acceptance_length']:.2f} ({figures['rounds']})"
