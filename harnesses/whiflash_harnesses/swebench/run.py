"""``run``: the agent works on each task; its patch goes to ``preds.json``, its conversation to a file."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict

from whiflash_engine.config import DEFAULT_TARGET
from whiflash_engine.errors import WhiFlashError
from whiflash_harnesses.environments import Environment, EnvironmentFactory
from whiflash_harnesses.loop import Agent, AgentConfig, Interrupt, Outcome, Turn
from whiflash_harnesses.swebench.folder import RunFolder, write_json
from whiflash_harnesses.swebench.progress import Progress
from whiflash_harnesses.swebench.tasks import Task
from whiflash_harnesses.swebench.testbed import Testbed, build_testbed, take_patch
from whiflash_harnesses.swebench.trajectory import trajectory
from whiflash_harnesses.swebench.versions import versions


class RunConfig(BaseModel):
    """Everything that makes one run what it is; two runs with equal ones may share an output folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subset: str = "bundled"
    model: str = DEFAULT_TARGET
    base_url: str | None = None
    """Server to use instead of the embedded engine."""
    router: str | None = None
    """``None`` leaves the choice to the engine's configuration."""
    environment: str = "bubblewrap"
    enforce_eager: bool = False
    trace: bool = True
    """Keep the round records in the trajectory."""
    agent: AgentConfig = AgentConfig()


class Runner:
    """Works on tasks one after the other and writes what comes of it to ``folder``."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        make_model: Callable[[], BaseChatModel],
        make_environment: EnvironmentFactory,
        progress: Progress,
    ) -> None:
        self.config = config
        self.folder = folder
        self._make_model = make_model
        self._make_environment = make_environment
        self._progress = progress
        self._interrupt = Interrupt(progress.line)

    def run(self, tasks: Sequence[Task], *, redo: bool = False) -> None:
        """Work on all tasks that the folder does not hold finished. Ctrl-C ends it after the step at hand."""
        self.folder.open_run(self.config.model_dump(), versions(), redo=redo)
        waiting = [task for task in tasks if not self.folder.is_finished(task.instance_id)]
        if len(waiting) < len(tasks):
            self._progress.line(f"{len(tasks) - len(waiting)} of {len(tasks)} tasks are finished already")
        if not waiting:
            return
        model = self._make_model()
        with self._interrupt:
            for task in waiting:
                if self._interrupt.requested:
                    raise KeyboardInterrupt
                self._work_on(task, model)
            if self._interrupt.requested:
                raise KeyboardInterrupt

    def _work_on(self, task: Task, model: BaseChatModel) -> None:
        self._progress.line(f"{task.instance_id}: {_title(task)}")
        self._progress.now("building the testbed")
        with tempfile.TemporaryDirectory(prefix="whiflash-testbed-") as root:
            testbed = build_testbed(task, Path(root))
            environment = self._make_environment(testbed.tree, testbed.shared)
            try:
                self._converse(task, model, testbed, environment)
            finally:
                environment.close()

    def _converse(self, task: Task, model: BaseChatModel, testbed: Testbed, environment: Environment) -> None:
        agent = Agent(
            model,
            environment,
            self.config.agent,
            on_turn=lambda turn: self._after_turn(task, agent, turn),
            should_stop=lambda: self._interrupt.requested,
        )
        self._progress.now("starting the engine, then step 1")
        try:
            outcome = agent.run(str(task.row["problem_statement"]))
        except KeyboardInterrupt:
            self._keep(task, agent, Outcome("interrupted", "stopped at once"), testbed, environment)
            raise
        self._keep(task, agent, outcome, testbed, environment)

    def _after_turn(self, task: Task, agent: Agent, turn: Turn) -> None:
        self._save(task, agent, None, "")
        self._progress.line(turn_line(turn, self.config.agent.steps))
        last = turn.number >= self.config.agent.steps
        self._progress.now("taking the patch" if last else f"step {turn.number + 1}")

    def _keep(
        self, task: Task, agent: Agent, outcome: Outcome, testbed: Testbed, environment: Environment
    ) -> None:
        """Keep the work so far, however the task ended."""
        try:
            patch = take_patch(testbed, environment)
        except WhiFlashError as error:
            patch, outcome.detail = "", f"{outcome.detail} (no patch: {error})".strip()
        self._save(task, agent, outcome, patch)
        self.folder.add_prediction(task.instance_id, self.config.model, patch)
        detail = f" ({outcome.detail})" if outcome.detail else ""
        size = f"patch of {len(patch.splitlines())} lines" if patch else "no change to the code"
        self._progress.line(f"{task.instance_id}: {outcome.exit_status}{detail}, {size}")

    def _save(self, task: Task, agent: Agent, outcome: Outcome | None, patch: str) -> None:
        content = trajectory(task.instance_id, agent, outcome, patch, self.config.model_dump())
        if not self.config.trace:
            for message in content["messages"]:
                message["extra"].get("whiflash", {}).pop("trace", None)
        write_json(self.folder.trajectory_file(task.instance_id), content)


def _title(task: Task) -> str:
    return next(iter(str(task.row["problem_statement"]).strip().splitlines()), "")


def turn_line(turn: Turn, steps: int) -> str:
    """Say one turn in one line: what was called, how fast, what was drafted by whom."""
    tokens = turn.usage.get("output_tokens", 0)
    parts = [f"step {turn.number}/{steps}", *(call[:100] for call in turn.calls or ["(no tool call)"])]
    parts.append(f"{tokens} tokens in {turn.generation_s:.1f} s")
    if turn.finish_reason == "length":
        parts.append("cut at the length limit")
    for name, drafted in (turn.whiflash.get("by_drafter") or {}).items():
        parts.append(f"{name} {drafted['accepted']}/{drafted['drafted']} accepted")
    return " | ".join(part.replace("\n", "\\n") for part in parts)
