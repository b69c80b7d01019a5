"""LangChain's standard unit tests for chat models.

``test_serdes`` skips itself: langchain-core 1.8 loads only classes on its own list, so a package outside it
gains nothing by declaring itself serializable. Our cache key comes from ``_identifying_params``.
"""

from typing import Any

import pytest
from langchain_tests.unit_tests import ChatModelUnitTests

from whiflash_agent import ChatWhiFlash


class TestChatWhiFlash(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatWhiFlash]:
        return ChatWhiFlash

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2-135m"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"WHIFLASH_API_KEY": "key"}, {"model": "smollm2-135m"}, {"api_key": "key"}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        """One engine has one model; another name is refused."""
        return False

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        details = ["cache_read_input", "reasoning_output"]
        return {"invoke": details, "stream": details}


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Construction and binding must not start an engine, nor ask for one."""
    import whiflash_agent.chat_models as module

    def refuse(*_: object) -> None:
        raise AssertionError("a unit test asked for the embedded engine")

    monkeypatch.setattr(module, "EmbeddedBackend", refuse)
