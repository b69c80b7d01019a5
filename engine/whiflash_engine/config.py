"""One typed object says what to run and how to route.

It travels to the engine core as ``additional_config["whiflash"]`` (JSON), so every field is plain data.
Per-request overrides travel in ``SamplingParams.extra_args`` (the server's ``vllm_xargs``), key
``whiflash_router``.
"""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from whiflash_engine.errors import ConfigError

RouterName = Literal["eagle3", "dflash", "ngram", "entropy", "neural", "cost", "off", "survey"]
ROUTERS: tuple[str, ...] = get_args(RouterName)
ROUTER_KEY = "whiflash_router"
"""Key of the per-request router override in ``SamplingParams.extra_args`` / ``vllm_xargs``."""

DEFAULT_TARGET = "smollm2-135m"


def check_router(name: object) -> RouterName:
    """Return ``name`` as a router name; raise :class:`ConfigError` if there is no such router."""
    if name in ROUTERS:
        return name  # type: ignore[return-value]
    raise ConfigError(f"unknown router {name!r}: choose one of {', '.join(ROUTERS)}")


class WhiFlashConfig(BaseModel):
    """What the engine runs: target, drafters, router.

    ``target``, ``eagle3`` and ``dflash`` are registry names or paths of checkpoint folders; drafters left
    at ``None`` come from the registry entry of the target.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = DEFAULT_TARGET
    eagle3: str | None = None
    dflash: str | None = None
    router: RouterName = "cost"
    """Router of requests that do not name one; ``off`` drafts nothing."""
    router_threshold: float | None = None
    """Entropy in nats above which EAGLE-3 drafts; ``None`` takes the calibrated value of the checkpoint."""
    neural_router: str | None = None
    """File (safetensors) of the neural router; ``None`` takes the target's own, if it has one."""
    neural_threshold: float | None = None
    """Predicted ΔAL in tokens above which EAGLE-3 drafts; ``None`` takes the file's."""
    acceptance: str | None = None
    """File (safetensors) of the cost router's acceptance network; ``None`` takes the target's own, if any."""
    eagle3_tokens: int = Field(default=4, ge=1, le=32)
    """Draft tokens per EAGLE-3 round."""
    dflash_tokens: int = Field(default=7, ge=1, le=63)
    """Tokens that DFlash drafts in a block: the trained block size less the anchor, or fewer."""
    dflash_offered: int | None = Field(default=None, ge=1)
    """How many of them are put to the target. ``None``: what is best for a known target, else all. On a CPU every
    row that the target verifies takes time, and the last tokens of a block are seldom right."""
    dflash_short_head: bool | None = None
    """Let DFlash choose among the EAGLE-3 head's draft vocabulary only; ``None``: on the CPU, where reading the
    target's whole head takes longer than all of DFlash's layers."""
    ngram_tokens: int = Field(default=10, ge=0, le=64)
    """Draft tokens per lookup round, at most; 0 leaves the lookup drafter out."""
    trace: bool = True
    """Keep one record per request and round until it is taken."""

    @field_validator("router", mode="before")
    @classmethod
    def _known_router(cls, value: object) -> object:
        return check_router(value)

    @property
    def max_draft_tokens(self) -> int:
        """Largest number of tokens any drafter proposes in a round; vLLM reserves this many slots."""
        return max(self.eagle3_tokens, self.dflash_tokens, self.ngram_tokens)


class EngineConfig(BaseModel):
    """One embedded engine: a :class:`WhiFlashConfig` and vLLM's own engine arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    whiflash: WhiFlashConfig = WhiFlashConfig()
    max_model_len: int | None = Field(default=None, ge=64)
    """Context window in tokens; ``None`` takes the target's own, capped to what the machine's cache holds."""
    max_num_seqs: int = Field(default=16, ge=1)
    enforce_eager: bool = False
    """Skip compilation: starts in seconds, runs slower. For tests."""
    seed: int = 0
    stock: Literal["off", "eagle3", "dflash"] | None = None
    """Run vLLM as it is, with its own proposer for one method or with none (``off``): a benchmark's peer, without
    routing and records."""
    vllm_args: dict[str, Any] = Field(default_factory=dict)
    """Any other vLLM engine argument by its Python name; passed through unchanged."""


def build_config(**fields: Any) -> WhiFlashConfig:
    """Build a :class:`WhiFlashConfig`, turning pydantic's report into a one-line :class:`ConfigError`."""
    try:
        return WhiFlashConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}={first.get('input')!r}: {first['msg']}") from error
