"""What a person meets: task sets, output folders, the command line and its errors."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from whiflash_agent.swebench import app
from whiflash_engine.errors import ConfigError
from whiflash_harnesses.environments import bubblewrap
from whiflash_harnesses.swebench import command
from whiflash_harnesses.swebench.figures import add_drafting, figures
from whiflash_harnesses.swebench.folder import RunFolder, write_json
from whiflash_harnesses.swebench.progress import Progress
from whiflash_harnesses.swebench.report import render
from whiflash_harnesses.swebench.tasks import BUNDLED, load_tasks, select

PARSE = "r1chardj0n3s__parse-1.20.2"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def one_line_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.output
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subset", "missing/set"], "task set 'missing/set' not found"),
        (["--subset", "lite"], "not in this version yet"),
        (["--filter", "nothing"], f"the set has {PARSE}"),
        (["--filter", "("], "not a regular expression"),
        (["--slice", "first"], "not of the form a:b"),
        (["--router", "random"], "unknown router 'random'"),
        (["--environment", "docker"], "not in this version yet"),
        (["--environment", "local"], "--unsafe-local"),
        (["--steps", "0"], "steps=0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = invoke("run", "--output", tmp_path / "out", *arguments)
    assert said in one_line_error(result)
    assert not (tmp_path / "out").exists()


def test_a_missing_bubblewrap_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    assert "bubblewrap (bwrap) not found" in one_line_error(invoke("run", "--output", tmp_path / "out"))


def test_folders_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    local = ("--environment", "local", "--unsafe-local")
    for more in ((), ("--redo",)):
        result = invoke("run", "--output", tmp_path, *local, *more)
        assert "choose another --output" in one_line_error(result)
    assert "not the output folder of a run" in one_line_error(invoke("evaluate", tmp_path))
    assert "not the output folder of a run" in one_line_error(invoke("report", tmp_path))
    assert "not empty" in one_line_error(invoke("demo", "--output", tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def finished_run(folder: Path, **config: Any) -> RunFolder:
    run = RunFolder(folder)
    run.open_run({"steps": 8, "model": "smollm2-135m", "router": None, **config}, {"python": "3"}, redo=False)
    turn = {
        "malformed": 1,
        "finish_reason": "length",
        "usage": {"input_tokens": 100, "output_tokens": 50, "input_token_details": {"cache_read": 40}},
        "generation_s": 2.0,
        "tool_s": 0.5,
        "whiflash": {
            "rounds": 10,
            "drafted": 40,
            "accepted": 20,
            "by_drafter": {"eagle3": {"rounds": 10, "drafted": 40, "accepted": 20}},
            "per_segment": {},
        },
    }
    message = {"role": "assistant", "content": "", "extra": turn}
    info = {"exit_status": "step_limit", "exit_detail": "8 steps", "submission": "a\nb\n"}
    write_json(run.trajectory_file("task-1"), {"info": info, "messages": [message]})
    run.add_prediction("task-1", "smollm2-135m", "a\nb\n")
    return run


def test_another_configuration_is_refused_and_redo_discards_only_the_run(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    other = {"steps": 20, "model": "smollm2-135m", "router": None}
    with pytest.raises(ConfigError, match=r"\(steps=8 there, steps=20 here\).*--output.*--redo"):
        run.open_run(other, {}, redo=False)
    assert run.is_finished("task-1")
    run.open_run(other, {}, redo=True)
    assert not run.is_finished("task-1")
    assert run.read_run()["config"] == other
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "other", "run.json"]


def test_a_run_that_began_no_task_does_not_hold_its_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.open_run({"model": "wrong"}, {}, redo=False)
    run.open_run({"model": "right"}, {}, redo=False)
    assert run.read_run()["config"] == {"model": "right"}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    run.run_file.write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        run.read_run()


def test_console_and_json_show_the_same_figures(tmp_path: Path) -> None:
    finished_run(tmp_path)
    result = invoke("report", tmp_path, "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == figures(RunFolder(tmp_path))
    instance = report["instances"]["task-1"]
    assert (instance["tok_s"], instance["cut_replies"], instance["cached_tokens"]) == (25.0, 1, 40)
    assert instance["drafting"]["by_drafter"]["eagle3"]["mean_acceptance_length"] == 3.0
    console = Console(width=200, record=True, file=io.StringIO())
    render(report, console)
    shown = console.export_text()
    for text in ("step_limit", "25.0", "eagle3", "3.00", "Not evaluated yet", "1 replies ended"):
        assert text in shown, shown


def test_an_unresolved_run_of_the_small_model_says_that_this_is_usual(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    write_json(run.results_file, {"evaluation": "0001", "instances": {"task-1": {"resolved": False}}})
    console = Console(width=200, record=True, file=io.StringIO())
    render(figures(run), console)
    assert "135M parameters rarely mends a real bug" in console.export_text()


def test_drafting_figures_add_up_and_survive_their_own_sum() -> None:
    part = {
        "rounds": 2,
        "drafted": 8,
        "accepted": 3,
        "by_drafter": {"dflash": {"rounds": 2, "drafted": 8, "accepted": 3}},
        "per_segment": {"code": {"tokens": 5, "rounds": 2, "drafted": 8, "accepted": 3, "by_drafter": {}}},
    }
    once = add_drafting([part, {}, part])
    assert once["mean_acceptance_length"] == 1 + 6 / 4
    assert once["per_segment"]["code"]["tokens"] == 10
    assert add_drafting([once]) == once
    assert add_drafting([])["mean_acceptance_length"] is None


def test_a_failed_model_makes_the_command_fail(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    trajectory = run.trajectory("task-1")
    assert trajectory is not None
    trajectory["info"] |= {"exit_status": "model_error", "exit_detail": "engine died"}
    write_json(run.trajectory_file("task-1"), trajectory)
    with pytest.raises(Exception, match=r"1 of 1 tasks \(task-1: engine died\)"):
        command._raise_model_errors(run)


def test_rows_have_the_official_format_and_tell_no_fix() -> None:
    for task in load_tasks("bundled"):
        row = task.row
        official = "repo instance_id base_commit patch test_patch problem_statement hints_text created_at version"
        official += " FAIL_TO_PASS PASS_TO_PASS environment_setup_commit log_parser eval_type eval_script image"
        assert sorted(row) == sorted(official.split())
        assert all(isinstance(value, str) for value in row.values())
        assert row["test_patch"] in row["eval_script"]
        added = [line[1:].strip() for line in row["patch"].splitlines() if line.startswith("+")]
        assert not any(line and line in row["problem_statement"] for line in added)


def test_other_sets_load_from_folders_and_files(tmp_path: Path) -> None:
    row = load_tasks("bundled")[0].row
    (tmp_path / "sources.json").write_bytes((BUNDLED / "sources.json").read_bytes())
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert load_tasks(str(tmp_path / "rows.jsonl"))[0].row == row
    (tmp_path / "row.json").write_text(json.dumps(row))
    assert load_tasks(str(tmp_path))[0].row == row
    for change, said in (
        ({"image": None}, "lacks image"),
        ({"instance_id": "../x"}, "cannot name a folder"),
        ({"instance_id": "x"}, "no source for x"),
    ):
        changed = {key: value for key, value in {**row, **change}.items() if value is not None}
        (tmp_path / "row.json").write_text(json.dumps(changed))
        with pytest.raises(ConfigError, match=said):
            load_tasks(str(tmp_path))


def test_select_filters_then_slices() -> None:
    tasks = load_tasks("bundled")
    assert select(tasks, "parse", "0:1") == tasks[:1]
    assert select(tasks, part="-1:") == tasks[-1:]


def test_progress_is_plain_lines_unless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.now("building the testbed")
        progress.line("step 1/8 [bash] done")
    assert capsys.readouterr().err == "building the testbed ...\nstep 1/8 [bash] done\n"
    console = Console(force_terminal=True, width=60, record=True, file=io.StringIO())
    with Progress(console) as progress:
        progress.now("step [1]")
        progress.line("x" * 100)
    shown = console.export_text()
    assert "step [1]" in shown
    assert "x" * 59 + "…\n" in shown and "x" * 60 not in shown
