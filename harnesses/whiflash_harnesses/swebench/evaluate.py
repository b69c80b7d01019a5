"""``evaluate``: each patch on a fresh testbed, its row's script in the sandbox, swebench's verdict."""

import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from whiflash_engine.errors import ConfigError
from whiflash_harnesses.environments import Environment, EnvironmentFactory
from whiflash_harnesses.swebench.folder import RunFolder, write_json
from whiflash_harnesses.swebench.progress import Progress
from whiflash_harnesses.swebench.tasks import Task
from whiflash_harnesses.swebench.testbed import build_testbed

SCHEMA = "whiflash-swebench-results/1"
LOG_LIMIT = 20_000_000
EVALUATION_SECONDS = 900.0
_INSTALL = "pip install 'whiflash-agent[swebench]'"
# In swebench's order: each is tried when the one before has failed.
_APPLY = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)


def evaluate(
    folder: RunFolder,
    tasks: Sequence[Task],
    make_environment: EnvironmentFactory,
    progress: Progress,
    *,
    seconds: float = EVALUATION_SECONDS,
) -> dict[str, Any]:
    """Judge every prediction of ``folder``; write and return ``results.json``.

    ``seconds`` bounds one task's tests. Raises :class:`ConfigError` if there is nothing to judge.
    """
    predictions = folder.predictions()
    known = {task.instance_id: task for task in tasks}
    if not predictions:
        raise ConfigError(f"{folder.path} has no preds.json to evaluate: `run` writes it")
    if unknown := sorted(predictions.keys() - known.keys()):
        raise ConfigError(f"{folder.path}: the task set has no {', '.join(unknown)}")
    progress.now("loading swebench's grader")
    _grader()
    logs = folder.new_evaluation()
    verdicts = {}
    for name, prediction in sorted(predictions.items()):
        progress.now(f"{name}: running its tests")
        verdicts[name] = judge(known[name], prediction, logs / name, make_environment, seconds=seconds)
        progress.line(f"{name}: {_in_words(verdicts[name])}")
    results = {"schema": SCHEMA, "evaluation": logs.name, "instances": verdicts}
    write_json(folder.results_file, results)
    return results


def judge(
    task: Task,
    prediction: Mapping[str, str],
    logs: Path,
    make_environment: EnvironmentFactory,
    *,
    seconds: float = EVALUATION_SECONDS,
) -> dict[str, Any]:
    """Run and grade one patch; ``logs`` becomes a new folder with all that led to the verdict."""
    make_test_spec, get_eval_report = _grader()
    spec = make_test_spec(task.row)
    patch = prediction["model_patch"] or ""
    logs.mkdir(parents=True)
    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix="whiflash-testbed-") as root:
        testbed = build_testbed(task, Path(root))
        inputs = testbed.shared / "eval"
        inputs.mkdir()
        for place in (inputs, logs):
            (place / "eval.sh").write_text(spec.eval_script, encoding="utf-8")
            (place / "patch.diff").write_text(patch, encoding="utf-8")
        environment = make_environment(testbed.tree, testbed.shared)
        log = _apply_and_test(environment, inputs, bool(patch.strip()), seconds)
        environment.close()
    log_file = logs / "test_output.txt"
    log_file.write_text(log, encoding="utf-8")
    report = get_eval_report(spec, dict(prediction), str(log_file), include_tests_status=True)
    verdict = _verdict(report[task.instance_id], patch) | {"seconds": perf_counter() - began}
    write_json(logs / "report.json", report)
    return verdict


def check_grader() -> None:
    """Raise :class:`ConfigError` if swebench is not installed; importing it would take seconds."""
    if find_spec("swebench") is None:
        raise ConfigError(f"swebench is not installed, and it judges the patches: {_INSTALL}")


def _grader() -> tuple[Any, Any]:
    """Import swebench here and now: it loads docker, modal and datasets, which takes seconds."""
    try:
        from swebench.harness.grading import get_eval_report
        from swebench.harness.utils import make_test_spec
    except ImportError as error:
        raise ConfigError(f"swebench's grader cannot be imported ({error}): {_INSTALL}") from error
    return make_test_spec, get_eval_report


def _apply_and_test(environment: Environment, inputs: Path, has_patch: bool, seconds: float) -> str:
    """Return the log that swebench's grader reads; its markers say what went wrong, if something did."""
    from swebench.harness.constants import APPLY_PATCH_FAIL, APPLY_PATCH_PASS, TESTS_TIMEOUT

    log = ""
    if has_patch:
        applied, log = _apply(environment, environment.inside(inputs / "patch.diff"))
        log += f"{APPLY_PATCH_PASS if applied else APPLY_PATCH_FAIL}\n"
        if not applied:
            return log
    script = environment.inside(inputs / "eval.sh")
    result = environment.execute(f"exec bash {script}", seconds, limit=LOG_LIMIT)
    log += result.output
    return f"{log}\n{TESTS_TIMEOUT} after {seconds:g} seconds\n" if result.timed_out else log


def _apply(environment: Environment, patch: str) -> tuple[bool, str]:
    log = ""
    for command in _APPLY:
        result = environment.execute(f"{command} {patch}", 60)
        log += f"$ {command}\n{result.output}"
        if result.returncode == 0:
            return True, log
    return False, log


def _verdict(report: Mapping[str, Any], patch: str) -> dict[str, Any]:
    """Return the verdict in short: resolved or not, and how many tests of each kind pass."""
    tests = report.get("tests_status") or {}
    return {
        "resolved": bool(report["resolved"]),
        "patch_empty": not patch.strip(),
        "graded": bool(report["patch_successfully_applied"]),
        "infra_failure": report.get("infra_failure_reason"),
    } | {
        kind.lower(): {
            "passed": len(tests.get(kind, {}).get("success", [])),
            "failed": len(tests.get(kind, {}).get("failure", [])),
        }
        for kind in ("FAIL_TO_PASS", "PASS_TO_PASS")
    }


def _in_words(verdict: Mapping[str, Any]) -> str:
    if not verdict["graded"]:
        return "not resolved: the patch did not apply or the tests did not run, see test_output.txt"
    counts = [
        f"{verdict[kind]['passed']} of {sum(verdict[kind].values())} {kind}"
        for kind in ("fail_to_pass", "pass_to_pass")
    ]
    return f"{'resolved' if verdict['resolved'] else 'not resolved'}: {', '.join(counts)}"
