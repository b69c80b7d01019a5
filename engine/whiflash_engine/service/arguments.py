"""vLLM's engine and server arguments for one :class:`EngineConfig`."""

import dataclasses
import difflib
import os
from argparse import Namespace
from typing import Any

from whiflash_engine.checkpoints.registry import ResolvedModels
from whiflash_engine.config import EngineConfig, WhiFlashConfig
from whiflash_engine.errors import ConfigError

CPU_WORKER = "whiflash_engine.runtime.cpu.WhiFlashCPUWorker"
GPU_WORKER = "whiflash_engine.runtime.gpu.WhiFlashGPUWorker"

_PARSERS = {"smollm2": "hermes", "qwen3-coder": "qwen3_coder", "qwen3": "hermes", "llama-3": "llama3_json"}
"""Tool parser by what a target's name contains; more specific names first."""

_REASONING = {"qwen3-coder": None, "qwen3": "qwen3"}
"""Reasoning parser by what a target's name contains; without one, thoughts stay in the text, tags and all."""

_OURS = ("worker_cls", "additional_config", "speculative_config")
"""vLLM arguments by which the drafting path gets in."""


def set_environment() -> None:
    """Set what vLLM reads from the environment before it is imported; values of the user's own stand."""
    cores = sorted(os.sched_getaffinity(0))
    defaults = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def engine_arguments(config: EngineConfig, models: ResolvedModels, *, on_cpu: bool) -> dict[str, Any]:
    """Return keyword arguments of vLLM's ``EngineArgs``; the user's ``vllm_args`` win."""
    arguments: dict[str, Any] = {
        "model": models.target,
        "served_model_name": [config.whiflash.target],
        "max_num_seqs": config.max_num_seqs,
        "enforce_eager": config.enforce_eager,
        "seed": config.seed,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    if config.stock is not None:
        arguments |= stock_arguments(config.stock, config.whiflash, models)
    else:
        arguments["worker_cls"] = CPU_WORKER if on_cpu else GPU_WORKER
        arguments |= drafting_arguments(config.whiflash, models)
    if config.max_model_len is not None:
        arguments["max_model_len"] = config.max_model_len
    if on_cpu:
        # float32: without AVX512-BF16 instructions bfloat16 is ten times slower, and exactness is tested on it.
        arguments["dtype"] = "float32"
    return arguments | checked_vllm_args(config.vllm_args)


def checked_vllm_args(given: dict[str, Any]) -> dict[str, Any]:
    """Return ``given``; raise :class:`ConfigError` for a name vLLM does not know, or one this engine sets."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(f"unknown vLLM engine argument {name!r}{hint}: see `vllm serve --help=all`")
        if name in _OURS:
            raise ConfigError(
                f"vLLM engine argument {name!r} is set by this engine: use eagle3=, dflash=, router="
            )
    return given


def drafting_arguments(config: WhiFlashConfig, models: ResolvedModels) -> dict[str, Any]:
    """Return the arguments that put both drafters into the engine.

    vLLM is told of the EAGLE-3 head, so that it reserves draft slots and handles prefix-cache hits; the worker
    adds DFlash. One slot more than the longest draft: DFlash also queries the token just sampled.
    """
    resolved = config.model_copy(
        update={
            "target": models.target,
            "eagle3": models.eagle3,
            "dflash": models.dflash,
            "router_threshold": models.router_threshold,
            "neural_router": models.neural_router,
            "acceptance": models.acceptance,
            "dflash_offered": models.dflash_offered,
        }
    )
    return {
        "additional_config": {"whiflash": resolved.model_dump()},
        "speculative_config": {
            "method": "eagle3",
            "model": models.eagle3,
            "num_speculative_tokens": config.max_draft_tokens + 1,
            # Rejected rows are dropped before drafting; drafts of different lengths need this.
            "disable_padded_drafter_batch": True,
        },
    }


def stock_arguments(method: str, config: WhiFlashConfig, models: ResolvedModels) -> dict[str, Any]:
    """Return the arguments by which vLLM itself drafts with one drafter, as many tokens as ours would."""
    if method == "off":
        return {}
    drafter, tokens = {
        "eagle3": (models.eagle3, config.eagle3_tokens),
        "dflash": (models.dflash, config.dflash_tokens),
    }[method]
    return {"speculative_config": {"method": method, "model": drafter, "num_speculative_tokens": tokens}}


def server_arguments(config: EngineConfig, models: ResolvedModels, *, on_cpu: bool) -> Namespace:
    """Return the namespace that vLLM's server code reads, with the switches an agent needs set."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    namespace: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    values = engine_arguments(config, models, on_cpu=on_cpu) | {
        "enable_auto_tool_choice": True,
        "tool_call_parser": tool_parser(config.whiflash.target),
        "reasoning_parser": config.vllm_args.get("reasoning_parser") or reasoning_parser(config.whiflash.target),
        # Without it a forced call may carry arguments that do not follow the schema.
        "tool_strict_level": "parameter",
        "enable_prompt_tokens_details": True,
    }
    for name, value in values.items():
        setattr(namespace, name, value)
    return namespace


def tool_parser(target: str) -> str:
    """Return vLLM's tool parser for a target; Hermes' form is the commonest."""
    lowered = target.lower()
    return next((parser for part, parser in _PARSERS.items() if part in lowered), "hermes")


def reasoning_parser(target: str) -> str:
    """Return vLLM's reasoning parser for a target, or ``""`` if it is not known to think aloud."""
    lowered = target.lower()
    return next((parser for part, parser in _REASONING.items() if part in lowered), None) or ""
