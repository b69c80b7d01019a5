"""SWE-bench end to end with a scripted model: real source, real sandbox, swebench's own verdicts."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from typer.testing import CliRunner

from whiflash_agent import ChatWhiFlash
from whiflash_agent.swebench import app
from whiflash_agent.testing import ScriptedBackend, answer, call
from whiflash_engine.errors import ConfigError, WhiFlashError
from whiflash_harnesses.environments import EnvironmentFactory, environment_factory
from whiflash_harnesses.loop import AgentConfig
from whiflash_harnesses.loop.scripted import ScriptedChatModel, calling
from whiflash_harnesses.swebench import command, sources
from whiflash_harnesses.swebench.evaluate import evaluate
from whiflash_harnesses.swebench.figures import figures
from whiflash_harnesses.swebench.folder import RunFolder
from whiflash_harnesses.swebench.progress import Progress
from whiflash_harnesses.swebench.run import RunConfig, Runner
from whiflash_harnesses.swebench.tasks import Task, load_tasks
from whiflash_harnesses.swebench.testbed import build_testbed, take_patch

pytestmark = pytest.mark.sandbox
PARSE = "r1chardj0n3s__parse-1.20.2"
BUGGY = r"""PARSE_RE = re.compile(r"({{|}}|{\w*(?:\.\w+|\[[^]]+])*(?::[^}]+)?})")"""
FIXED = r"""PARSE_RE = re.compile(r"({{|}}|{[\w-]*(?:\.[\w-]+|\[[^]]+])*(?::[^}]+)?})")"""
FIX = [
    (BUGGY, FIXED),
    (
        'group = field.replace(".", "_").replace("[", "_").replace("]", "_")',
        'group = field.replace(".", "_").replace("[", "_").replace("]", "_").replace("-", "_")',
    ),
    (
        '                group = field.replace("_", "_" * n)\n',
        '                group = field.replace("_", "_" * n)\n            elif "-" in field:\n'
        '                group = field.replace("-", "_" * n)\n',
    ),
]
DRAFTING = {
    "rounds": 8,
    "drafted": 32,
    "accepted": 12,
    "by_drafter": {
        "eagle3": {"rounds": 5, "drafted": 20, "accepted": 10},
        "dflash": {"rounds": 3, "drafted": 12, "accepted": 2},
    },
    "per_segment": {
        "tool_json": {
            "tokens": 20,
            "rounds": 8,
            "drafted": 32,
            "accepted": 12,
            "by_drafter": {
                "eagle3": {"rounds": 5, "drafted": 20, "accepted": 10},
                "dflash": {"rounds": 3, "drafted": 12, "accepted": 2},
            },
        }
    },
    "trace": [{"round": 0, "drafter": "eagle3"}],
}


@pytest.fixture(scope="module", params=[task.instance_id for task in load_tasks("bundled")])
def task(request: pytest.FixtureRequest) -> Task:
    found = next(t for t in load_tasks("bundled") if t.instance_id == request.param)
    try:
        sources.fetch(found.source)
    except WhiFlashError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def sandbox() -> EnvironmentFactory:
    try:
        return environment_factory("bubblewrap")
    except ConfigError as error:
        pytest.skip(str(error))


def run(
    folder: Path, task: Task, sandbox: EnvironmentFactory, replies: list[Any], **agent: Any
) -> ScriptedChatModel:
    model = ScriptedChatModel(replies=replies)
    config = RunConfig(agent=AgentConfig(**agent))
    with Progress() as progress:
        Runner(config, RunFolder(folder), lambda: model, sandbox, progress).run([task])
    return model


def verdict(folder: Path, task: Task, sandbox: EnvironmentFactory) -> dict[str, Any]:
    with Progress() as progress:
        found: dict[str, Any] = evaluate(RunFolder(folder), [task], sandbox, progress)["instances"]
    return found[task.instance_id]


def predicted(folder: Path, task: Task, patch: str) -> None:
    RunFolder(folder).add_prediction(task.instance_id, "test", patch)


def test_gold_resolves_and_the_empty_patch_does_not(
    task: Task, sandbox: EnvironmentFactory, tmp_path: Path
) -> None:
    failing, passing = (len(json.loads(task.row[key])) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    predicted(tmp_path, task, "")
    empty = verdict(tmp_path, task, sandbox)
    assert (empty["resolved"], empty["graded"], empty["patch_empty"]) == (False, True, True)
    assert empty["fail_to_pass"] == {"passed": 0, "failed": failing}
    assert empty["pass_to_pass"] == {"passed": passing, "failed": 0}

    predicted(tmp_path, task, task.row["patch"])  # in the same folder: the old verdict must not stick
    gold = verdict(tmp_path, task, sandbox)
    assert (gold["resolved"], gold["graded"]) == (True, True)
    assert gold["fail_to_pass"] == {"passed": failing, "failed": 0}
    assert sorted(p.name for p in (tmp_path / "evaluations").iterdir()) == ["0001", "0002"]


def test_a_patch_that_does_not_apply_or_breaks_the_module_is_not_resolved(
    task: Task, sandbox: EnvironmentFactory, tmp_path: Path
) -> None:
    predicted(tmp_path, task, task.row["patch"].replace("\n-", "\n-x").replace("\n ", "\n y"))
    assert verdict(tmp_path, task, sandbox)["graded"] is False
    log = next(tmp_path.glob("evaluations/0001/*/test_output.txt")).read_text()
    assert ">>>>> Patch Apply Failed" in log

    spoof = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    spoof += "@@ -0,0 +1,2 @@\n+import os\n+os._exit(0)\n"
    predicted(tmp_path, task, spoof)
    assert verdict(tmp_path, task, sandbox)["resolved"] is False


def test_the_tree_holds_one_commit_and_no_future(task: Task, tmp_path: Path) -> None:
    testbed = build_testbed(task, tmp_path)

    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=testbed.tree, text=True)

    assert git("rev-list", "--all", "--reflog").split() == [task.row["base_commit"]]
    assert git("remote") == git("tag") == git("status", "--porcelain") == ""
    kinds = git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds.count("commit") == 1
    assert build_testbed(task, tmp_path / "again").base_commit == task.row["base_commit"]


def test_the_patch_is_the_change_whatever_was_done_to_git(
    task: Task, sandbox: EnvironmentFactory, tmp_path: Path
) -> None:
    testbed = build_testbed(task, tmp_path)
    environment = sandbox(testbed.tree, testbed.shared)
    assert take_patch(testbed, environment) == ""
    environment.execute("echo one > new.py; mkdir -p pkg/__pycache__; touch pkg/__pycache__/x.pyc", 30)
    patch = take_patch(testbed, environment)
    assert "+++ b/new.py" in patch and "pycache" not in patch
    environment.execute("git add -A; git -c user.name=a -c user.email=a@b commit -qm own", 30)
    assert take_patch(testbed, environment) == patch
    environment.execute("git config core.fsmonitor 'touch /testbed/hooked'; rm -rf .git", 30)
    assert take_patch(testbed, environment) == patch
    assert not (testbed.tree / "hooked").exists()


def test_a_scripted_agent_resolves_the_bug(sandbox: EnvironmentFactory, task: Task, tmp_path: Path) -> None:
    if task.instance_id != PARSE:
        pytest.skip("the script is that of parse")
    replies = [calling("bash", command="grep -n PARSE_RE parse.py", whiflash=DRAFTING)]
    replies += [
        calling("edit", path="parse.py", search=search, replace=replace, whiflash=DRAFTING)
        for search, replace in FIX
    ]
    run(tmp_path, task, sandbox, [*replies, calling("submit")])
    assert verdict(tmp_path, task, sandbox)["resolved"] is True

    trajectory = json.loads((tmp_path / PARSE / f"{PARSE}.traj.json").read_text())
    assert trajectory["trajectory_format"] == "mini-swe-agent-1.1"
    assert trajectory["info"]["exit_status"] == "submitted"
    assert trajectory["info"]["submission"] == RunFolder(tmp_path).predictions()[PARSE]["model_patch"]
    assert [m["role"] for m in trajectory["messages"][:4]] == ["system", "user", "assistant", "tool"]
    assert trajectory["messages"][2]["extra"]["whiflash"]["trace"] == DRAFTING["trace"]

    report = figures(RunFolder(tmp_path))
    instance = report["instances"][PARSE]
    assert (instance["resolved"], instance["steps"], instance["malformed_calls"]) == (True, 5, 0)
    assert (instance["input_tokens"], instance["cached_tokens"], instance["output_tokens"]) == (500, 300, 100)
    for drafting in (instance["drafting"], report["overall"]["drafting"]):
        assert drafting["by_drafter"]["eagle3"] == {
            "rounds": 20,
            "drafted": 80,
            "accepted": 40,
            "mean_acceptance_length": 3.0,
        }
        assert drafting["per_segment"]["tool_json"]["tokens"] == 80
        assert drafting["per_segment"]["tool_json"]["by_drafter"]["dflash"]["accepted"] == 8
        assert drafting["mean_acceptance_length"] == 2.5


def test_the_demo_runs_evaluates_and_reports(
    sandbox: EnvironmentFactory, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command line on ``ChatWhiFlash``; only the engine's answers are set."""
    backend = ScriptedBackend(
        answer(calls=[call("bash", '{"command": "ls"}')]),
        answer(calls=[call("submit", "{}")]),
        window=8192,
    )
    monkeypatch.setattr(command, "chat_model", lambda config: ChatWhiFlash(backend=backend))
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "2 of 2 fail_to_pass" not in result.stderr and "not resolved: 0 of 2" in result.stderr
    assert "rarely mends a real bug" in " ".join(result.stdout.split())
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["overall"]["steps"] == 2 and report["overall"]["resolved"] == 0
    asked = [body for body in backend.bodies if "tool_choice" in body]
    assert [body["tool_choice"] for body in asked] == ["required", "required"]
    given, own = 2, 1
    assert [m["role"] for m in asked[1]["messages"]] == ["system", "user", *["assistant", "tool"] * (given + own)]
    assert "parse.py" in asked[0]["messages"][3]["content"], "the first commands were really run"


def test_a_step_limit_still_submits_the_change(sandbox: EnvironmentFactory, task: Task, tmp_path: Path) -> None:
    run(tmp_path, task, sandbox, [calling("bash", command="echo x > made.py")], steps=1)
    prediction = RunFolder(tmp_path).predictions()[task.instance_id]
    assert "+++ b/made.py" in prediction["model_patch"]
    assert prediction["instance_id"] == task.instance_id
    info = RunFolder(tmp_path).trajectory(task.instance_id)["info"]  # type: ignore[index]
    assert info["exit_status"] == "step_limit"


def test_a_resumed_run_skips_what_is_finished(sandbox: EnvironmentFactory, task: Task, tmp_path: Path) -> None:
    first = run(tmp_path, task, sandbox, [calling("bash", command="echo 1 > made.py"), RuntimeError("died")])
    assert len(first.seen) == 2
    assert "made.py" in RunFolder(tmp_path).predictions()[task.instance_id]["model_patch"]
    second = run(tmp_path, task, sandbox, [calling("submit")])  # a failed model is no result: tried again
    assert len(second.seen) == 1
    assert run(tmp_path, task, sandbox, [calling("submit")]).seen == []
    with pytest.raises(ConfigError, match=r"agent.steps=30 there, agent.steps=7 here.*--redo"):
        run(tmp_path, task, sandbox, [calling("submit")], steps=7)


def test_ctrl_c_keeps_the_work_and_the_run_goes_on_later(
    sandbox: EnvironmentFactory, task: Task, tmp_path: Path
) -> None:
    def press(times: int) -> AIMessage:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return calling("bash", command="echo second > second.py")

    made = calling("bash", command="echo first > first.py")
    for times, patched in ((1, ["first.py", "second.py"]), (2, ["first.py"])):
        folder = tmp_path / str(times)
        with pytest.raises(KeyboardInterrupt):
            run(folder, task, sandbox, [made, lambda times=times: press(times)])
        info = RunFolder(folder).trajectory(task.instance_id)["info"]  # type: ignore[index]
        assert info["exit_status"] == "interrupted"
        patch = RunFolder(folder).predictions()[task.instance_id]["model_patch"]
        assert [n for n in ("first.py", "second.py") if f"+++ b/{n}" in patch] == patched
        assert len(run(folder, task, sandbox, [calling("submit")]).seen) == 1


def test_a_changed_source_is_noticed_and_fetched_again(task: Task) -> None:
    cached = sources.fetch(task.source)
    content = cached.read_bytes()
    cached.write_bytes(content[:-1])
    try:
        assert sources.sha256_of(sources.fetch(task.source)) == task.source.sha256
    except WhiFlashError as error:
        pytest.skip(f"no package index: {error}")
    finally:
        cached.write_bytes(content)


def test_offline_without_a_cache_is_a_clear_error(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(WhiFlashError, match=f"source of {task.source.distribution} .* connect to a package"):
        sources.fetch(task.source)
    assert list((tmp_path / "cache" / "sources").glob("tmp*")) == []
