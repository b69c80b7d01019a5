"""The bench without an engine: figures from hand-made records, the runner against a scripted service."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from whiflash_agent import bench as bench_cli
from whiflash_engine.config import ROUTER_KEY, EngineConfig
from whiflash_engine.errors import CheckpointError, ConfigError, EngineError
from whiflash_engine.segments import per_segment
from whiflash_engine.trace import RoundRecord
from whiflash_harnesses.bench import command, console, figures, runner, workloads
from whiflash_harnesses.bench.figures import Group, Sample
from whiflash_harnesses.bench.oracles import SURVEY, oracle_figures
from whiflash_harnesses.bench.runner import BenchOptions

ARM_KEYS = {
    "requests", "output_tokens", "seconds", "tok_s", "ttft_ms", "itl_ms", "rounds", "drafted", "accepted",
    "mean_acceptance_length", "acceptance_by_position", "share_by_drafter", "acceptance_by_drafter",
    "switches", "catch_up_rows", "router_fraction", "switch_fraction", "per_segment", "round_profile",
}  # fmt: skip
REPORT_KEYS = {
    "schema", "versions", "machine", "config", "settings", "workloads", "overall", "examples", "memory_mb",
}  # fmt: skip
WORKLOAD_KEYS = {"arms", "ratios", "best_single", "oracle", "identical_to_off", "differing"}


# ---- figures: exact values ----------------------------------------------------------------------


def record(drafter: str, drafted: int, accepted: int, **fields: Any) -> RoundRecord:
    return RoundRecord("r", 0, fields.pop("position", 1), drafter, "entropy", drafted, accepted, **fields)


def sample(
    arm: str, tokens: int, decode_s: float, request: str = "a", ids: tuple[int, ...] = (), **fields: Any
) -> Sample:
    return Sample("code", request, arm, tokens, fields.pop("ttft_s", 0.5), decode_s, token_ids=ids, **fields)


def group(*samples: Sample, seconds: float = 1.0) -> Group:
    return Group(samples[0].arm, seconds, samples)


def test_arm_figures() -> None:
    times = {"draft_s": 0.25, "verify_s": 0.5, "router_s": 0.125, "catch_up_s": 0.125}
    rounds = (
        record("eagle3", 4, 2, **times),
        record("dflash", 8, 4, switched=True, catch_up_rows=3, **times),
    )
    first = sample("entropy", 9, 4.0, rounds=rounds, ttft_s=0.25)
    second = sample("entropy", 3, 1.0, request="b", ttft_s=0.75)
    result = figures.arm_figures([group(first, seconds=4.5), group(second, seconds=1.5)])
    eagle3 = {"rounds": 1, "drafted": 4, "accepted": 2, "acceptance_rate": 0.5, "mean_acceptance_length": 3.0}
    dflash = {"rounds": 1, "drafted": 8, "accepted": 4, "acceptance_rate": 0.5, "mean_acceptance_length": 5.0}
    assert result == {
        "requests": 2,
        "output_tokens": 12,
        "seconds": 6.0,
        "tok_s": 2.0,
        "ttft_ms": 500.0,
        "itl_ms": 500.0,
        "rounds": 2,
        "drafted": 12,
        "accepted": 6,
        "mean_acceptance_length": 4.0,
        "acceptance_by_position": [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
        "share_by_drafter": {"dflash": 0.5, "eagle3": 0.5},
        "acceptance_by_drafter": {"eagle3": eagle3, "dflash": dflash},
        "switches": 1,
        "catch_up_rows": 3,
        "router_fraction": 0.125,
        "switch_fraction": 0.25,
        "per_segment": {},
        # decode seconds are 4 + 1 over two rounds; the four phases make one second of each round
        "round_profile": {
            "round_s": 2.5,
            "draft_s": 0.25,
            "catch_up_s": 0.125,
            "verify_s": 0.5,
            "router_s": 0.125,
            "overhead_s": 1.5,
        },
    }


def test_an_arm_without_rounds_has_no_means() -> None:
    result = figures.arm_figures([group(sample("off", 1, 0.0))])
    assert result["itl_ms"] is None  # one token: nothing between tokens
    assert result["round_profile"] is None
    assert result["router_fraction"] is None
    assert result["mean_acceptance_length"] is None


def test_speed_ratio_is_pairwise_over_the_same_request() -> None:
    # decode tokens per second: off 10, 20, 40 and eagle3 20, 30, 40 -> ratios 2, 1.5, 1
    samples = [
        sample("off", 11, 1.0, "a"),
        sample("off", 21, 1.0, "b"),
        sample("off", 41, 1.0, "c"),
        sample("eagle3", 11, 0.5, "a"),
        sample("eagle3", 31, 1.0, "b"),
        sample("eagle3", 21, 0.5, "c"),
        sample("eagle3", 99, 0.1, "only under eagle3"),
    ]
    assert figures.speed_ratio(samples, "eagle3", "off") == {"median": 1.5, "p25": 1.25, "p75": 1.75}
    assert figures.speed_ratio(samples[:4], "eagle3", "off") == {"median": 2.0, "p25": 2.0, "p75": 2.0}


def test_speed_ratio_leaves_out_requests_without_a_second_token() -> None:
    assert figures.speed_ratio([sample("off", 1, 0.0), sample("eagle3", 9, 1.0)], "eagle3", "off") is None


def test_ratios_are_against_the_reference_arms_that_ran() -> None:
    groups = [group(sample(arm, 5, 1.0)) for arm in ("off", "dflash", "entropy")]
    ratios = figures.workload_figures(groups, ("off", "dflash", "entropy"))["ratios"]
    one = {"median": 1.0, "p25": 1.0, "p75": 1.0}
    assert ratios == {
        "off": {"vs_dflash": one},
        "dflash": {"vs_off": one},
        "entropy": {"vs_off": one, "vs_dflash": one},
    }


@pytest.mark.parametrize(
    ("ids", "position"),
    [((1, 2, 4), 2), ((1, 2), 2), ((1, 2, 3, 4), 3), ((9, 2, 3), 0)],
    ids=["other token", "shorter", "longer", "first token"],
)
def test_a_difference_from_off_is_found(ids: tuple[int, ...], position: int) -> None:
    groups = [group(sample("off", 3, 1.0, ids=(1, 2, 3))), group(sample("eagle3", 3, 1.0, ids=ids))]
    result = figures.workload_figures(groups, ("off", "eagle3"))
    assert result["identical_to_off"] is False
    assert result["differing"] == [
        {"workload": "code", "request": "a", "arm": "eagle3", "position": position},
    ]


def test_identical_to_off_is_unknown_without_off() -> None:
    result = figures.workload_figures([group(sample("eagle3", 3, 1.0, ids=(1, 2, 3)))], ("eagle3",))
    assert result["identical_to_off"] is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["eagle3", "dflash"]), st.integers(0, 4), st.integers(0, 20)), max_size=12)
)
def test_merged_segments_are_those_of_all_rounds_together(rounds: list[tuple[str, int, int]]) -> None:
    tokens = ["So", ":\n", "```py\n", *["x "] * 18]
    records = [record(name, 4, accepted, position=at) for name, accepted, at in rounds]
    parts = [per_segment(records[:5], tokens), per_segment(records[5:], tokens)]
    merged = figures.merge_segments(parts)
    whole = per_segment(records, tokens)
    for segment in whole:
        assert merged[segment].pop("tokens") == 2 * whole[segment].pop("tokens")
    assert _rounded(merged) == _rounded(whole)


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return round(data, 9) if isinstance(data, float) else data


# ---- workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_bundled_prompts(name: str) -> None:
    prompts = workloads.load_prompts(name)
    assert len(prompts) == 8
    assert len({json.dumps(prompt.body) for prompt in prompts}) == 8
    assert all(prompt.body["messages"][-1]["role"] == "user" for prompt in prompts)


def test_tool_requests_force_a_strict_function_that_they_offer() -> None:
    for prompt in workloads.load_prompts("tool_json"):
        functions = {tool["function"]["name"]: tool["function"] for tool in prompt.body["tools"]}
        assert all(function["strict"] is True for function in functions.values())
        assert all(f["parameters"]["additionalProperties"] is False for f in functions.values())
        choice = prompt.body["tool_choice"]
        assert choice == "required" or choice["function"]["name"] in functions


def test_more_requests_than_prompts_repeat_under_names_of_their_own() -> None:
    prompts = workloads.select_prompts("chat", 17)
    assert len({prompt.name for prompt in prompts}) == 17
    assert prompts[16].name == f"{prompts[0].name}#3"
    assert prompts[16].body == prompts[0].body


def test_the_warm_up_is_not_measured() -> None:
    measured = {json.dumps(p.body["messages"]) for w in workloads.WORKLOADS for p in workloads.load_prompts(w)}
    assert not measured & {json.dumps(p.body["messages"]) for p in workloads.load_prompts(workloads.WARM_UP)}


# ---- runner: a scripted service with a clock of its own --------------------------------------------


FOUR = ("off", "eagle3", "dflash", "entropy")
STEP_S = dict.fromkeys((*runner.ARMS, SURVEY), 0.25) | {"eagle3": 0.125, "dflash": 0.125, "entropy": 0.0625}


class ScriptedService:
    """Answers every request with the same tokens: 0.5 s to the first, then one round of two a step."""

    def __init__(self, error: Exception | None = None) -> None:
        self.wrong: set[tuple[str, str]] = set()
        """(arm, start of a user message) whose output is not that of the others."""
        self.error = error
        self.now = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.running = self.most_running = 0
        self.max_model_len = 8192

    def start(self) -> None:
        self.events.append("start")

    def close(self) -> None:
        self.events.append("close")

    def describe(self) -> dict[str, Any]:
        return {"versions": {"vllm": "0"}, "machine": {"cores": 2}, "config": {}, "memory_mb": 100}

    async def astream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.error:
            raise self.error
        arm = body.get("vllm_xargs", {}).get(ROUTER_KEY, "off")
        self.now += 0.5
        yield chunk(role="assistant")
        for _ in range(2):
            await asyncio.sleep(0)
            self.now += STEP_S[arm]
            yield chunk(content="x = ")
        yield chunk(finish="stop")
        self.now += 7.0  # joining the trace must not count as decoding
        self.running -= 1
        yield {
            "choices": [],
            "usage": {"completion_tokens": 5, "prompt_tokens": 999},
            "whiflash": self._details(arm, body),
        }

    def _details(self, arm: str, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        wrong = any(arm == of_arm and text.startswith(start) for of_arm, start in self.wrong)
        tokens = ["```py\n", "x", " = ", "1", "\n```"]
        rounds = [record("eagle3", 4, 1, position=at, verify_s=0.03125) for at in (1, 3)]
        drafts = {1: {"eagle3": [2, 3], "dflash": [2, 3, 4]}, 2: {"eagle3": [3, 9], "dflash": [9]},
                  3: {"eagle3": [9], "dflash": [4, 5]}, 4: {"eagle3": [5], "dflash": [5]}}  # fmt: skip
        surveyed = [record("none", 0, 0, position=at, survey=drafts[at]) for at in drafts]
        traced = surveyed if arm == SURVEY else rounds
        return {
            "token_ids": [1, 2, 3, 4, 6 if wrong else 5],
            "token_texts": tokens,
            "trace": [{**r.to_dict(), "segment": "code", "text": "x = "} for r in traced],
            "per_segment": per_segment(rounds, tokens),
        }


def chunk(finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


class Recorder:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.total = 0
        self.done: list[Group] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, total: int) -> None:
        self.total = total

    def advance(self, group: Group) -> None:
        self.done.append(group)


def small(**fields: Any) -> BenchOptions:
    chosen = {
        "workloads": ("code", "tool_json"),
        "arms": FOUR,
        "requests": 2,
        "max_tokens": 8,
        "oracle": False,
        "prompt_lengths": (),
    }
    return BenchOptions(**{**chosen, **fields})


async def measure(service: ScriptedService, options: BenchOptions) -> list[Group]:
    groups, _ = await runner.measure(service, options, Recorder(), clock=lambda: service.now)
    return groups


async def test_times_of_a_request() -> None:
    groups = await measure(ScriptedService(), small(requests=1, workloads=("code",)))
    by_arm = {group.arm: group.samples[0] for group in groups}
    assert {arm: s.ttft_s for arm, s in by_arm.items()} == dict.fromkeys(FOUR, 0.5)
    assert {arm: s.decode_s for arm, s in by_arm.items()} == {
        "off": 0.5,
        "eagle3": 0.25,
        "dflash": 0.25,
        "entropy": 0.125,
    }
    result = figures.workload_figures(groups, FOUR)
    assert result["ratios"]["entropy"]["vs_off"]["median"] == 4.0
    assert result["arms"]["off"]["round_profile"]["overhead_s"] == 0.25 - 0.03125


async def test_warm_up_comes_first_for_every_arm_and_is_not_measured() -> None:
    service = ScriptedService()
    groups = await measure(service, small())
    warm_ups = workloads.load_prompts(workloads.WARM_UP)
    head = service.bodies[: 4 * len(warm_ups)]
    assert Counter(body["vllm_xargs"][ROUTER_KEY] for body in head) == dict.fromkeys(FOUR, len(warm_ups))
    assert {body["max_tokens"] for body in head} == {runner.WARM_UP_TOKENS}
    assert {s.workload for g in groups for s in g.samples} == {"code", "tool_json"}
    assert len(groups) == 2 * 2 * 4


async def test_surveys_are_not_timed_and_tell_what_perfect_routing_would_reach() -> None:
    service = ScriptedService()
    groups, surveys = await runner.measure(service, small(oracle=True), Recorder(), clock=lambda: service.now)
    assert SURVEY not in {group.arm for group in groups}
    assert len(surveys) == 2 * 2
    found = oracle_figures(surveys)
    # After token 1 DFlash has [2, 3, 4] right of [2, 3, 4, 5]: the next round starts after token 4.
    assert found == {
        "drafters": ["dflash", "eagle3"],
        "per_request": {"rounds": 4, "mean_acceptance_length": 4.0, "share_by_drafter": {"dflash": 1.0}},
        "per_round": {"rounds": 4, "mean_acceptance_length": 4.0, "share_by_drafter": {"dflash": 1.0}},
    }
    assert oracle_figures([]) is None


def test_the_best_single_drafter_is_what_routers_are_measured_against() -> None:
    speeds = {"off": 10, "eagle3": 15, "dflash": 20, "entropy": 24, "cost": 18}
    groups = [group(sample(arm, tokens, 0.9), seconds=1.0) for arm, tokens in speeds.items()]
    found = figures.best_single(groups, tuple(speeds))
    assert found == {"arm": "dflash", "over_it": {"entropy": 1.2, "cost": 0.9}}
    assert figures.best_single(groups[:1], ("off",)) is None


async def test_every_request_body_is_greedy_traced_and_cold() -> None:
    service = ScriptedService()
    await measure(service, small())
    await measure(service, small())  # a second bench in the same engine
    assert all(body["temperature"] == 0 and body["whiflash_trace"] is True for body in service.bodies)
    salts = {body["cache_salt"] for body in service.bodies}
    assert len(salts) == len(service.bodies)
    assert all(len(salt) <= 128 and not set(salt) & set("@/\\\0") for salt in salts)  # vLLM's own limits


def test_arms_are_interleaved_and_their_order_is_seeded() -> None:
    turns = runner.plan_turns(small(requests=8))
    assert turns == runner.plan_turns(small(requests=8))
    assert turns != runner.plan_turns(small(requests=8, seed=1))
    orders = [tuple(turn.arm for turn in turns[at : at + 4]) for at in range(0, len(turns), 4)]
    assert all(sorted(order) == sorted(FOUR) for order in orders)
    assert len(set(orders)) > 1
    assert all(turns[at].prompts == turns[at - at % 4].prompts for at in range(len(turns)))


async def test_concurrent_requests_run_together_under_one_arm() -> None:
    service = ScriptedService()
    groups = await measure(service, small(workloads=("code",), requests=5, concurrency=3))
    assert service.most_running == 3
    assert sorted(len(group.samples) for group in groups) == [2] * 4 + [3] * 4
    assert all({s.arm for s in group.samples} == {group.arm} for group in groups)
    assert figures.workload_figures(groups, FOUR)["arms"]["dflash"]["requests"] == 5


def test_report_has_the_whole_schema_and_is_json() -> None:
    service = ScriptedService()
    progress = Recorder()
    report = runner.run_bench(service, small(), progress)
    assert service.events == ["start", "close"]
    assert progress.total == len(progress.done) == 16
    assert json.loads(json.dumps(report))["schema"] == "whiflash-bench/1"
    assert set(report) == REPORT_KEYS
    assert report["memory_mb"] == 100
    assert list(report["workloads"]) == ["code", "tool_json"]
    for part in (*report["workloads"].values(), report["overall"]):
        assert set(part) == WORKLOAD_KEYS
        assert part["identical_to_off"] is True
        assert list(part["arms"]) == list(FOUR)
        assert all(set(arm) == ARM_KEYS for arm in part["arms"].values())
    assert report["overall"]["arms"]["off"]["requests"] == 4
    assert report["overall"]["arms"]["off"]["per_segment"]["code"]["rounds"] == 8


def test_the_engine_is_closed_when_a_request_fails() -> None:
    service = ScriptedService(error=EngineError("the engine died"))
    with pytest.raises(EngineError, match="the engine died"):
        runner.run_bench(service, small(), Recorder())
    assert service.events == ["start", "close"]


def test_an_answer_without_figures_is_an_error() -> None:
    class Mute(ScriptedService):
        async def astream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            yield chunk(role="assistant")

    with pytest.raises(EngineError, match="without its figures"):
        runner.run_bench(Mute(), small(), Recorder())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arms": ("off", "magic")}, "unknown router 'magic'"),
        ({"workloads": ("poems",)}, "unknown workload 'poems'"),
        ({"arms": ("off", "off")}, "named twice"),
        ({"arms": ()}, "no arm given"),
        ({"requests": 0}, "requests=0"),
        ({"max_tokens": 1}, "max_tokens=1"),
    ],
)
def test_bad_options(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**fields)


# ---- command line -------------------------------------------------------------------------------


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedService]:
    scripted = ScriptedService()
    monkeypatch.setattr(bench_cli, "open_service", lambda config: scripted)
    return scripted


def run_cli(*arguments: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(bench_cli.app, list(arguments))


def test_quick_run_writes_the_report_and_shows_it(service: ScriptedService, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = run_cli("--quick", "--json", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["settings"]["requests"] == 3
    assert report["settings"]["max_tokens"] == 96
    assert list(report["workloads"]) == list(workloads.WORKLOADS)
    assert list(tmp_path.iterdir()) == [path]
    for title in ("Speed", "Drafting", "One round, ms", "Acceptance length (rounds) by segment"):
        assert title in result.stdout
    assert "[105/105] chat/mail-to-team" in result.stderr


def test_options_reach_the_plan(service: ScriptedService) -> None:
    result = run_cli("--workload", "code,chat", "--workload", "diff", "--arms", "off,dflash", "--requests", "1",
                     "--no-stock")  # fmt: skip
    assert result.exit_code == 0, result.output
    measured = [body for body in service.bodies if body["max_tokens"] == 192]
    assert sum(body["vllm_xargs"][ROUTER_KEY] == SURVEY for body in measured) == 3
    measured = [body for body in measured if body["vllm_xargs"][ROUTER_KEY] != SURVEY]
    assert len(measured) == 3 * 2
    assert {body["vllm_xargs"][ROUTER_KEY] for body in measured} == {"off", "dflash"}


def test_stock_vllm_runs_in_engines_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str | None] = []

    def open_service(config: EngineConfig) -> ScriptedService:
        opened.append(config.stock)
        return ScriptedService()

    monkeypatch.setattr(bench_cli, "open_service", open_service)
    path = tmp_path / "out.json"
    result = run_cli("--workload", "code", "--arms", "off,eagle3,entropy", "--no-oracle", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert opened == [None, "off", "eagle3"], "only methods that are among the arms"
    report = json.loads(path.read_text())
    figures = report["stock"]["eagle3"]
    assert set(figures) == {"code", "overall", "prompts"}
    for prompts in (report["prompts"], figures["prompts"]):
        assert {length: f["prompt_tokens"] for length, f in prompts.items()} == {"4096": 999, "7168": 999}
    assert "Prompt processing, cold" in result.output
    assert figures["code"]["ratio"] == figures["code"]["ours_tok_s"] / figures["code"]["stock_tok_s"]
    assert "Against stock vLLM" in result.output


def test_other_text_than_off_is_exit_code_1(service: ScriptedService, tmp_path: Path) -> None:
    service.wrong = {("dflash", "Write a Python function median")}
    result = run_cli("--quick", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 1
    assert "output differs from `off`: code/median under dflash, from output token 4 on" in result.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert {name: part["identical_to_off"] for name, part in report["workloads"].items()} == {
        "tool_json": True,
        "diff": True,
        "code": False,
        "reasoning": True,
        "chat": True,
    }


def test_without_off_nothing_is_compared_and_the_report_says_so(service: ScriptedService) -> None:
    result = run_cli("--quick", "--workload", "code", "--arms", "eagle3,entropy")
    assert result.exit_code == 0
    assert "compared with nothing" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "off,magic"], "unknown router 'magic'"),
        (["--workload", "poems"], "unknown workload 'poems'"),
        (["--json", "."], "is a folder"),
        (["--json", "no/such/folder/out.json"], "does not exist"),
        (["--html", "."], "is a folder"),
        (["--html", "no/such/folder/out.html"], "does not exist"),
        (["--json", "out", "--html", "out"], "name the same file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    service: ScriptedService, arguments: list[str], message: str
) -> None:
    result = run_cli("--quick", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert service.events == []  # found out before the engine started


def test_errors_of_the_engine_are_one_line_too(service: ScriptedService) -> None:
    service.error = CheckpointError("model 'x' is not there")
    result = run_cli("--quick")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "error: model 'x' is not there"


def test_engine_config_of_the_options() -> None:
    models = {"target": "t", "eagle3": None, "dflash": "d"}
    config = command.engine_config(models, concurrency=40, seed=3, enforce_eager=True)
    assert (config.whiflash.target, config.whiflash.eagle3, config.whiflash.dflash) == ("t", None, "d")
    assert (config.max_num_seqs, config.seed, config.enforce_eager) == (40, 3, True)


async def test_sampled_text_is_not_compared() -> None:
    service = ScriptedService()
    service.wrong = {("dflash", "Write a Python function median")}
    options = small(temperature=0.8, seed=4)
    groups = await measure(service, options)
    assert {(body["temperature"], body["seed"]) for body in service.bodies} == {(0.8, 4)}
    report = runner.build_report(groups, options, service.describe())
    assert report["settings"]["temperature"] == 0.8
    assert report["overall"]["identical_to_off"] is None
    assert report["overall"]["differing"] == []
    with pytest.raises(ConfigError, match=r"temperature=0.8 with oracle"):
        small(temperature=0.8, oracle=True)


def test_arms_that_lack_something_are_left_out_or_named(tmp_path: Path) -> None:
    folders: dict[str, str | None] = dict.fromkeys(("target", "eagle3", "dflash"), str(tmp_path))
    config = command.engine_config(folders, concurrency=1, seed=0)
    assert command.default_arms(config) == tuple(arm for arm in runner.ARMS if arm != "neural")
    with pytest.raises(CheckpointError, match="router 'neural' needs a network"):
        command.check_arms(("off", "neural"), config)


def test_live_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with console.open_progress() as progress:
        assert isinstance(progress, console.LiveProgress)
        runner.run_bench(ScriptedService(), small(), progress)
    assert "warm-up: entropy" in capsys.readouterr().err
