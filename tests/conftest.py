"""One real embedded engine for all tests that need one (CPU, eager: it starts in under a minute)."""

from collections.abc import Iterator
from typing import Any

import pytest

from whiflash_engine.config import EngineConfig, WhiFlashConfig

ENGINE_CONFIG = EngineConfig(
    whiflash=WhiFlashConfig(),
    enforce_eager=True,
    max_model_len=2048,
    # Small, so that longer prompts span several prefill chunks.
    vllm_args={"max_num_batched_tokens": 384},
)


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The embedded engine with its shipped drafters, started once."""
    from whiflash_engine.service import get_engine

    service = get_engine(ENGINE_CONFIG)
    service.start()
    yield service
    service.close()


@pytest.fixture(scope="session")
def chat_model(engine: Any) -> Any:
    """A ChatWhiFlash on the engine of the test run."""
    from whiflash_agent import ChatWhiFlash

    return ChatWhiFlash(
        temperature=0,
        enforce_eager=ENGINE_CONFIG.enforce_eager,
        max_model_len=ENGINE_CONFIG.max_model_len,
        engine_args=ENGINE_CONFIG.vllm_args,
    )
