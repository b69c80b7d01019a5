"""Sends the requests of a bench to the embedded engine and keeps what came back, with times.

Flow: plan (which arm runs which prompts, in which order) -> warm-up -> one group after the other -> report.
"""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from whiflash_engine.config import ROUTER_KEY, check_router
from whiflash_engine.errors import ConfigError, EngineError
from whiflash_engine.trace import RoundRecord
from whiflash_harnesses.bench.examples import pick_examples
from whiflash_harnesses.bench.figures import Group, Sample, workload_figures
from whiflash_harnesses.bench.oracles import SURVEY, oracle_figures
from whiflash_harnesses.bench.prefill import measure_prompts
from whiflash_harnesses.bench.workloads import (
    WARM_UP,
    WORKLOADS,
    Prompt,
    check_workload,
    load_prompts,
    select_prompts,
)

SCHEMA = "whiflash-bench/1"
ARMS = ("off", "eagle3", "dflash", "ngram", "entropy", "neural", "cost")
WARM_UP_TOKENS = 24

Clock = Callable[[], float]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. Arms are router names, ``off`` among them; ``requests`` is per workload."""

    workloads: tuple[str, ...] = WORKLOADS
    arms: tuple[str, ...] = ARMS
    requests: int = 4
    max_tokens: int = 192
    seed: int = 0
    concurrency: int = 1
    temperature: float = 0.0
    """0 is greedy, and texts are compared with ``off``'s; above it they differ, and nothing is compared."""
    stock: bool = True
    """Also measure vLLM as it is: plain, with EAGLE-3 and with DFlash, each in an engine of its own."""
    prompt_lengths: tuple[int, ...] = (4096, 7168)
    """Also measure how long prompts of about so many tokens take."""
    oracle: bool = True
    """Also survey every request (untimed): what would perfect routing have reached?"""

    def __post_init__(self) -> None:
        _check_names("arm", self.arms, check_router)
        _check_names("workload", self.workloads, check_workload)
        for name, least in (("requests", 1), ("max_tokens", 2), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least {least}")
        if self.temperature and self.oracle:
            raise ConfigError(f"temperature={self.temperature} with oracle: only greedy text can be replayed")


def _check_names(kind: str, names: tuple[str, ...], check: Callable[[str], str]) -> None:
    if not names:
        raise ConfigError(f"no {kind} given: name at least one")
    for name in names:
        check(name)
        if names.count(name) > 1:
            raise ConfigError(f"{kind} {name!r} is named twice: name it once")


@dataclass(frozen=True)
class Turn:
    """One step of the plan: these prompts, together, under this arm."""

    arm: str
    prompts: tuple[Prompt, ...]


class Service(Protocol):
    """The part of the embedded engine that the bench uses."""

    @property
    def max_model_len(self) -> int:
        """Context window in tokens."""

    def start(self) -> object:
        """Start the engine and wait until it answers."""

    def astream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream ``chat.completion.chunk`` dicts; the last one has ``usage`` and ``whiflash``."""

    def describe(self) -> dict[str, Any]:
        """Return versions, machine, config and memory."""

    def close(self) -> object:
        """Stop the engine."""


class Progress(Protocol):
    """Told what happens while it happens."""

    def note(self, text: str) -> None:
        """Show one line."""

    def begin(self, total: int) -> None:
        """Prepare for ``total`` groups."""

    def advance(self, group: Group) -> None:
        """Count one group as done."""


def run_bench(service: Service, options: BenchOptions, progress: Progress) -> dict[str, Any]:
    """Start ``service``, measure, close it, and return the report (schema ``whiflash-bench/1``)."""
    try:
        progress.note("starting the engine (the first start compiles and can take minutes)")
        service.start()
        progress.note(_memory_line(service.describe().get("memory_mb")))
        groups, surveys = asyncio.run(measure(service, options, progress))
        report = build_report(groups, options, service.describe(), surveys)
        if options.prompt_lengths:
            progress.note("processing long prompts")
            salt = uuid.uuid4().hex
            lengths = [length for length in options.prompt_lengths if length < 0.9 * service.max_model_len]
            prompts = measure_prompts(service, lengths, salt, time.perf_counter)
            report["prompts"] = asyncio.run(prompts)
        return report
    finally:
        service.close()


def _memory_line(memory: Any) -> str:
    """Say what weights and KV cache take; stock engines do not know."""
    if not isinstance(memory, dict) or not memory:
        return "memory: not known"
    return "memory in MB: " + ", ".join(f"{name} {size:.0f}" for name, size in memory.items())


def plan_turns(options: BenchOptions) -> list[Turn]:
    """Return all turns in the order they run: workload by workload, the arms shuffled for every group."""
    order = random.Random(options.seed)
    turns: list[Turn] = []
    for workload in options.workloads:
        prompts = select_prompts(workload, options.requests)
        for start in range(0, len(prompts), options.concurrency):
            together = tuple(prompts[start : start + options.concurrency])
            arms = order.sample(options.arms, k=len(options.arms))
            turns.extend(Turn(arm, together) for arm in arms)
    return turns


async def measure(
    service: Service, options: BenchOptions, progress: Progress, clock: Clock = time.perf_counter
) -> tuple[list[Group], list[Sample]]:
    """Warm up, run every turn of the plan, then survey every prompt if that is asked for."""
    salt = uuid.uuid4().hex  # a second bench in the same engine must find the prefix cache cold, too
    await _warm_up(service, options, progress, salt)
    turns = plan_turns(options)
    progress.begin(len(turns))
    groups = []
    for turn in turns:
        groups.append(await _run_turn(service, turn, options, salt, clock))
        progress.advance(groups[-1])
    prompts = {(prompt.workload, prompt.name): prompt for turn in turns for prompt in turn.prompts}
    surveyed = list(prompts.values()) if options.oracle else []
    surveys = []
    for number, prompt in enumerate(surveyed, start=1):
        progress.note(f"survey {number} of {len(surveyed)}: {prompt.workload}/{prompt.name}")
        surveys.append(await _run_request(service, prompt, SURVEY, options, salt, clock))
    return groups, surveys


async def _warm_up(service: Service, options: BenchOptions, progress: Progress, salt: str) -> None:
    prompts = load_prompts(WARM_UP)
    warm_up = replace(options, max_tokens=WARM_UP_TOKENS)
    for arm in options.arms:
        progress.note(f"warm-up: {arm}")
        for prompt in prompts:
            turn = Turn(arm, (prompt,) * options.concurrency)
            await _run_turn(service, turn, warm_up, salt, time.perf_counter)


async def _run_turn(service: Service, turn: Turn, options: BenchOptions, salt: str, clock: Clock) -> Group:
    started = clock()
    requests = (_run_request(service, prompt, turn.arm, options, salt, clock) for prompt in turn.prompts)
    samples = await asyncio.gather(*requests)
    return Group(turn.arm, clock() - started, tuple(samples))


async def _run_request(
    service: Service, prompt: Prompt, arm: str, options: BenchOptions, salt: str, clock: Clock
) -> Sample:
    body = request_body(prompt, arm, options, salt)
    last: dict[str, Any] = {}
    times = []
    started = clock()
    async for chunk in service.astream(body):
        last = chunk
        if chunk.get("choices"):  # the engine's first one comes with the first token; the usage has none
            times.append(clock())
    return _sample(prompt, arm, last, started, times)


def request_body(prompt: Prompt, arm: str, options: BenchOptions, salt: str) -> dict[str, Any]:
    """Return the OpenAI chat body of one request; its cache salt is shared with no other request."""
    return {
        **prompt.body,
        "temperature": options.temperature,
        **({"seed": options.seed} if options.temperature else {}),
        "max_tokens": options.max_tokens,
        "cache_salt": f"{salt}:{prompt.workload}:{prompt.name}:{arm}",  # vLLM takes no "/" in it
        "vllm_xargs": {ROUTER_KEY: arm},
        "stream": True,
        "stream_options": {"include_usage": True},
        "whiflash_trace": True,
    }


def _sample(prompt: Prompt, arm: str, last: dict[str, Any], started: float, times: Sequence[float]) -> Sample:
    details = last.get("whiflash")
    if details is None or not times:
        raise EngineError(f"request {prompt.workload}/{prompt.name} under arm {arm} ended without its figures")
    return Sample(
        workload=prompt.workload,
        request=prompt.name,
        arm=arm,
        output_tokens=last["usage"]["completion_tokens"],
        ttft_s=times[0] - started,
        decode_s=times[-1] - times[0],
        token_ids=tuple(details["token_ids"]),
        token_texts=tuple(details["token_texts"]),
        rounds=tuple(_record(entry) for entry in details["trace"]),
        per_segment=details["per_segment"],
    )


def _record(entry: dict[str, Any]) -> RoundRecord:
    """Read a trace entry: a round record, and what was joined to it afterwards."""
    return RoundRecord.from_dict({key: entry[key] for key in entry if key not in ("segment", "text")})


def build_report(
    groups: Sequence[Group],
    options: BenchOptions,
    description: dict[str, Any],
    surveys: Sequence[Sample] = (),
) -> dict[str, Any]:
    """Return the report; ``overall`` puts all workloads together."""
    return {
        "schema": SCHEMA,
        **{key: description.get(key) for key in ("versions", "machine", "config")},
        "settings": {**asdict(options), "prefix_cache": "cold", "warm_up": "each arm once"},
        "workloads": {
            name: workload_figures(
                [g for g in groups if g.samples[0].workload == name],
                options.arms,
                oracle_figures([survey for survey in surveys if survey.workload == name]),
                greedy=not options.temperature,
            )
            for name in options.workloads
        },
        "overall": workload_figures(groups, options.arms, oracle_figures(surveys), greedy=not options.temperature),
        "examples": pick_examples(groups),
        "memory_mb": description.get("memory_mb", description.get("memory")),
    }
