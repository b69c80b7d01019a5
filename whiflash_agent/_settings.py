"""The settings of ``ChatWhiFlash``: fields, checks at construction, and which of them identify a model."""

from typing import TYPE_CHECKING, Any, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.utils import secret_from_env
from pydantic import ConfigDict, Field, SecretStr, ValidationError, model_validator

from whiflash_agent.content_blocks import PROVIDER
from whiflash_engine.config import DEFAULT_TARGET, EngineConfig, build_config, check_router
from whiflash_engine.errors import ConfigError

SAMPLING = (
    "temperature",
    "top_p",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
    "top_logprobs",
)
"""Fields that go into a request under their own names, if set."""
_DRAFTING = (
    "eagle3",
    "dflash",
    "router_threshold",
    "neural_router",
    "neural_threshold",
    "acceptance",
    "eagle3_tokens",
    "dflash_tokens",
    "dflash_offered",
    "ngram_tokens",
    "dflash_short_head",
)
_ENGINE_ONLY = (*_DRAFTING, "enforce_eager", "engine_args")


class Settings(BaseChatModel):
    """Fields of :class:`whiflash_agent.chat_models.ChatWhiFlash`."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str = DEFAULT_TARGET
    """Registry name or checkpoint folder of the target; with ``base_url`` the served name, by default the
    first one the server lists. Alias ``model_name``."""
    eagle3: str | None = None
    """EAGLE-3 drafter: name or folder; ``None`` takes the target's own from the registry."""
    dflash: str | None = None
    """DFlash drafter: name or folder; ``None`` takes the target's own from the registry."""
    router: str | None = None
    """Who drafts: one drafter (``eagle3``, ``dflash``, ``ngram``), a router that picks anew in every round
    (``entropy``, ``neural``, ``cost``), or ``off``; ``None`` leaves it to the engine."""
    router_threshold: float | None = None
    neural_router: str | None = None
    neural_threshold: float | None = None
    acceptance: str | None = None
    eagle3_tokens: int | None = None
    dflash_tokens: int | None = None
    dflash_offered: int | None = None
    ngram_tokens: int | None = None
    dflash_short_head: bool | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Other vLLM engine arguments, passed through. They and the fields above shape the embedded engine."""

    base_url: str | None = None
    """Root of a running server's API, such as ``http://127.0.0.1:8000/v1``; then no engine is embedded."""
    api_key: SecretStr | None = Field(default_factory=secret_from_env("WHIFLASH_API_KEY", default=None))
    timeout: float | None = None
    """Seconds per request; for the first one of an embedded engine its start included."""
    max_retries: int = 2
    """Retries of requests to a server."""

    temperature: float | None = None
    max_tokens: int | None = None
    """Most tokens of an answer; ``None`` allows the rest of the context window."""
    top_p: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int = 1
    """Answers per request of ``generate``; the messages ``invoke`` and streams return are one answer."""
    streaming: bool = False
    stream_usage: bool = True
    """Put the usage on the last chunk of a stream."""
    merge_roles: bool = False
    """Join neighbouring messages of one role, and inline late system messages, for chat templates that refuse
    them (those of Mistral and Gemma do)."""
    trace: bool = False
    """Put one record per round into ``response_metadata["whiflash"]["trace"]``."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Other request fields, sent with every call."""

    if not TYPE_CHECKING:
        # Settings are checked before pydantic sees them, since it would wrap a ConfigError in a long report.
        # Hidden from type checkers: to them the fields are the keyword arguments.

        def __init__(self, **settings: Any) -> None:
            if "model_name" in settings:
                settings["model"] = settings.pop("model_name")
            check_settings(settings)
            super().__init__(**settings)

    @model_validator(mode="after")
    def _note_whiflash_version(self) -> Self:
        from whiflash_agent import __version__

        self._add_version("whiflash-agent", __version__)
        return self

    @property
    def model_name(self) -> str:
        """The model's name, as other chat models call it."""
        return self.model

    @property
    def _llm_type(self) -> str:
        return "whiflash-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything that can change an answer: it is part of the cache key."""
        common = ("model", "base_url", "router", "max_model_len", "trace", "model_kwargs", "n", "merge_roles")
        names = (*common, *_ENGINE_ONLY, *SAMPLING)
        # Not "stop": core overwrites that key by the call's own. The version shapes what core caches.
        others = {"default_stop": self.stop, "output_version": self.output_version}
        return {name: getattr(self, name) for name in names} | others

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = PROVIDER
        return params


def check_settings(settings: dict[str, Any]) -> None:
    """Raise :class:`ConfigError` for settings that no engine or server could follow."""
    if settings.get("router") is not None:
        check_router(settings["router"])
    if settings.get("n") is not None:
        check_answers(settings["n"])
    if settings.get("base_url") is None:
        engine_config(settings)
        return
    if foreign := [name for name in _ENGINE_ONLY if settings.get(name)]:
        raise ConfigError(
            f"{', '.join(foreign)} shape an embedded engine: set them where {settings['base_url']} runs"
        )


def check_answers(n: object) -> int:
    """Return ``n`` as a number of answers; raise :class:`ConfigError` if it is none."""
    if isinstance(n, int) and not isinstance(n, bool) and n >= 1:
        return n
    raise ConfigError(f"n={n!r} is no number of answers: pass 1 or more")


def engine_config(settings: dict[str, Any]) -> EngineConfig:
    """Return the engine the settings ask for. The router is not part of it: it travels with each request."""
    drafting = {name: settings[name] for name in _DRAFTING if settings.get(name) is not None}
    if settings.get("model") is not None:
        drafting["target"] = settings["model"]
    own = {name: settings[name] for name in ("max_model_len", "enforce_eager") if settings.get(name) is not None}
    whiflash = build_config(**drafting)
    try:
        return EngineConfig(whiflash=whiflash, vllm_args=settings.get("engine_args") or {}, **own)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}={first.get('input')!r}: {first['msg']}") from error
