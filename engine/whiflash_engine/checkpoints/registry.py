"""Known targets with their drafters, and how a :class:`WhiFlashConfig` becomes paths and Hub names.

Only names are kept here: nothing is downloaded, and what a Hub name leads to has its own licence.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from whiflash_engine.checkpoints.embedded import prepare_target
from whiflash_engine.config import DEFAULT_TARGET, RouterName, WhiFlashConfig
from whiflash_engine.errors import CheckpointError, ConfigError

DEFAULT_THRESHOLD = 1.0
"""Entropy threshold in nats of a pair that nobody has calibrated."""

_NEEDED: dict[RouterName, tuple[str, ...]] = {
    "eagle3": ("eagle3",),
    "dflash": ("dflash",),
    "ngram": (),
    "entropy": ("eagle3", "dflash"),
    "neural": ("eagle3", "dflash", "neural_router"),
    "cost": ("eagle3", "dflash"),
    "off": (),
    "survey": (),
}

_DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class ResolvedModels:
    """What the engine loads: paths of local folders, or Hub names that vLLM downloads."""

    name: str
    target: str
    eagle3: str | None
    dflash: str | None
    router_threshold: float
    """Entropy in nats above which EAGLE-3 drafts."""
    neural_router: str | None = None
    """File of the neural router."""
    dflash_offered: int | None = None
    """How many tokens of a DFlash block are put to the target; ``None``: all."""
    acceptance: str | None = None
    """File of the cost router's acceptance network."""
    licences: tuple[str, ...] = ()
    """One line per model whose licence the user should know of."""


@dataclass(frozen=True)
class Entry:
    """A target that is known by name. Drafters are Hub names, or folders shipped in this package."""

    eagle3: str
    dflash: str
    alternatives: tuple[str, ...] = ()
    """Other EAGLE-3 heads for this target, by name."""
    dflash_offered: int | None = None
    """How many tokens of a DFlash block are worth verifying; ``None``: all."""
    embedded: bool = False
    """Target and drafters are local: the target is prepared here, the drafters are package data."""


TARGETS: dict[str, Entry] = {
    DEFAULT_TARGET: Entry(
        eagle3=str(_DATA / DEFAULT_TARGET / "eagle3"),
        dflash=str(_DATA / DEFAULT_TARGET / "dflash"),
        dflash_offered=4,
        embedded=True,
    ),
    "Qwen/Qwen3-4B": Entry(
        eagle3="AngelSlim/Qwen3-4B_eagle3",
        dflash="z-lab/Qwen3-4B-DFlash-b16",
        alternatives=("WhiFlash/Qwen3-4B-EAGLE3",),
    ),
    "Qwen/Qwen3-8B": Entry(
        eagle3="RedHatAI/Qwen3-8B-speculator.eagle3",
        dflash="z-lab/Qwen3-8B-DFlash-b16",
        alternatives=("AngelSlim/Qwen3-8B_eagle3", "WhiFlash/Qwen3-8B-EAGLE3"),
    ),
}

LICENCES: dict[str, str] = {
    DEFAULT_TARGET: "SmolLM2-135M-Instruct: Apache-2.0",
    "WhiFlash/Qwen3-4B-EAGLE3": "WhiFlash/Qwen3-4B-EAGLE3: CC BY-NC-SA 4.0, for research purposes only",
    "WhiFlash/Qwen3-8B-EAGLE3": "WhiFlash/Qwen3-8B-EAGLE3: CC BY-NC-SA 4.0, for research purposes only",
}


def resolve(
    config: WhiFlashConfig,
    *,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
    prepare: bool = True,
) -> ResolvedModels:
    """Return the models that ``config`` names, preparing the embedded target if it is the one (and ``prepare``).

    A drafter that the pair does not have is ``None``, unless the configured router needs it.

    Raises:
        ConfigError: the target is neither a registry name nor a folder.
        CheckpointError: a drafter is not there, or the embedded target cannot be prepared.
    """
    entry = TARGETS.get(config.target)
    if entry is None and not Path(config.target).is_dir():
        raise ConfigError(
            f"unknown target {config.target!r}: choose one of {', '.join(TARGETS)}, or pass a folder "
            "as target= with eagle3= and dflash= folders trained for it"
        )
    eagle3 = _drafter("eagle3", config.eagle3, entry)
    dflash = _drafter("dflash", config.dflash, entry)
    models = ResolvedModels(
        name=config.target,
        target=config.target,
        eagle3=eagle3,
        dflash=dflash,
        router_threshold=_threshold(config),
        neural_router=_router_file("neural_router", config),
        acceptance=_router_file("acceptance", config),
        dflash_offered=_offered(config, entry),
        licences=tuple(LICENCES[name] for name in (config.target, eagle3, dflash) if name in LICENCES),
    )
    check_router_fits(config.router, models, config)
    if entry is None or not entry.embedded or not prepare:
        return models
    # Last, because it may take half a minute: what is wrong with the configuration is said first.
    prepared = prepare_target(config.target, cache_dir=cache_dir, progress=progress)
    return replace(models, target=str(prepared))


def check_router_fits(router: RouterName, models: ResolvedModels, config: WhiFlashConfig) -> None:
    """Raise a one-line error if ``router`` needs what ``models`` or ``config`` does not have.

    The engine asks again for a request that names a router of its own.
    """
    if router == "ngram" and not config.ngram_tokens:
        raise ConfigError("router 'ngram' with ngram_tokens=0: there is no lookup drafter, pass ngram_tokens=10")
    missing = [name for name in _NEEDED[router] if getattr(models, name) is None]
    if "neural_router" in missing:
        raise CheckpointError(
            f"router 'neural' needs a network that target {models.name} has not for these drafters: pass "
            "neural_router=FILE (made by `python -m whiflash_engine.routing calibrate`), or choose another router"
        )
    if missing:
        raise CheckpointError(
            f"router {router!r} needs a drafter that target {models.name} has not: pass "
            f"{' and '.join(f'{name}=FOLDER' for name in missing)} (train one with "
            "`python -m whiflash_engine.training`), or choose router='off'"
        )


def _drafter(kind: str, given: str | None, entry: Entry | None) -> str | None:
    """Return the drafter of ``kind``: the one given, else the registry's, else ``None``."""
    if given is not None:
        return _given_drafter(kind, given, entry)
    if entry is None:
        return None
    name = entry.eagle3 if kind == "eagle3" else entry.dflash
    if entry.embedded and not (Path(name) / "config.json").is_file():
        return None
    return name


def _given_drafter(kind: str, given: str, entry: Entry | None) -> str:
    """Accept a folder, or a name that is known for this target (for any target, if that is a folder)."""
    if Path(given).is_dir():
        return given
    known = [
        name
        for candidate in ([entry] if entry else TARGETS.values())
        if not candidate.embedded
        for name in ((candidate.eagle3, *candidate.alternatives) if kind == "eagle3" else (candidate.dflash,))
    ]
    if given in known:
        return given
    names = f", nor one of the drafters known for this target ({', '.join(known)})" if known else ""
    raise CheckpointError(f"{kind}={given!r} is not a folder{names}: pass the folder of a drafter")


def _offered(config: WhiFlashConfig, entry: Entry | None) -> int | None:
    """Return the configured number, else the known pair's; a drafter given by hand does not inherit it."""
    if config.dflash_offered is not None or entry is None or config.dflash:
        return config.dflash_offered
    return entry.dflash_offered


def _calibrated(config: WhiFlashConfig) -> Path | None:
    """Return the folder of what was calibrated for the target's shipped drafters.

    A calibration is for one pair of drafters, so drafters given by hand do not inherit it.
    """
    folder = _DATA / config.target
    return None if config.eagle3 or config.dflash or not folder.is_dir() else folder


def _threshold(config: WhiFlashConfig) -> float:
    """Return the configured threshold, else the calibrated one, else the default."""
    folder = _calibrated(config)
    if config.router_threshold is not None:
        return config.router_threshold
    if folder is None or not (folder / "router.json").is_file():
        return DEFAULT_THRESHOLD
    return float(json.loads((folder / "router.json").read_text(encoding="utf-8"))["entropy_threshold_nats"])


def _router_file(kind: str, config: WhiFlashConfig) -> str | None:
    """Return the file of a router's network: the one given, else the calibrated one, else ``None``."""
    given: str | None = getattr(config, kind)
    if given is not None:
        if not Path(given).is_file():
            raise CheckpointError(f"{kind}={given!r} is not a file: pass a safetensors file, or leave it out")
        return given
    folder = _calibrated(config)
    path = folder / f"{kind}.safetensors" if folder is not None else None
    return str(path) if path is not None and path.is_file() else None
