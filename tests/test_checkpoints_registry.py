"""From a configuration to the paths and Hub names of target and drafters."""

from pathlib import Path

import pytest

from whiflash_engine.checkpoints import registry
from whiflash_engine.checkpoints.registry import check_router_fits, resolve
from whiflash_engine.config import DEFAULT_TARGET as NAME
from whiflash_engine.config import WhiFlashConfig
from whiflash_engine.errors import CheckpointError, ConfigError


def test_known_pair_resolves_to_hub_names() -> None:
    found = resolve(WhiFlashConfig(target="Qwen/Qwen3-4B"))
    assert (found.name, found.target) == ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B")
    assert (found.eagle3, found.dflash) == ("AngelSlim/Qwen3-4B_eagle3", "z-lab/Qwen3-4B-DFlash-b16")
    assert (found.router_threshold, found.licences) == (registry.DEFAULT_THRESHOLD, ())


def test_research_only_head_is_named_with_its_licence() -> None:
    found = resolve(WhiFlashConfig(target="Qwen/Qwen3-8B", eagle3="WhiFlash/Qwen3-8B-EAGLE3"))
    assert found.eagle3 == "WhiFlash/Qwen3-8B-EAGLE3"
    assert found.licences == ("WhiFlash/Qwen3-8B-EAGLE3: CC BY-NC-SA 4.0, for research purposes only",)


def test_unknown_target() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(WhiFlashConfig(target="gpt-9"))
    assert str(raised.value) == (
        "unknown target 'gpt-9': choose one of smollm2-135m, Qwen/Qwen3-4B, Qwen/Qwen3-8B, or pass a folder "
        "as target= with eagle3= and dflash= folders trained for it"
    )


@pytest.mark.parametrize("dflash", ["nope", "z-lab/Qwen3-8B-DFlash-b16"])
def test_drafter_not_known_for_the_target(dflash: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        resolve(WhiFlashConfig(target="Qwen/Qwen3-4B", dflash=dflash))
    assert str(raised.value) == (
        f"dflash={dflash!r} is not a folder, nor one of the drafters known for this target "
        "(z-lab/Qwen3-4B-DFlash-b16): pass the folder of a drafter"
    )


def test_drafters_of_the_embedded_target_are_folders_only() -> None:
    with pytest.raises(CheckpointError, match="eagle3='nope' is not a folder: pass the folder"):
        resolve(WhiFlashConfig(eagle3="nope"))


def test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("target", "eagle3", "dflash")}
    for folder in folders.values():
        Path(folder).mkdir()
    found = resolve(WhiFlashConfig(**folders, router_threshold=0.25))
    assert (found.target, found.eagle3, found.dflash) == tuple(folders.values())
    assert found.router_threshold == 0.25


def test_a_router_needs_its_drafters(tmp_path: Path) -> None:
    eagle3 = str(tmp_path)
    alone = resolve(WhiFlashConfig(target=str(tmp_path), eagle3=eagle3, router="eagle3"))
    assert (alone.eagle3, alone.dflash) == (eagle3, None)
    assert resolve(WhiFlashConfig(target=str(tmp_path), router="off")).eagle3 is None
    with pytest.raises(CheckpointError, match=r"router 'cost' .* pass eagle3=FOLDER and dflash=FOLDER"):
        resolve(WhiFlashConfig(target=str(tmp_path)))
    with pytest.raises(CheckpointError, match=r"'dflash' needs .* dflash=FOLDER .*whiflash_engine.training"):
        check_router_fits("dflash", alone, WhiFlashConfig())


def test_a_router_needs_its_files(tmp_path: Path) -> None:
    folders = {"target": str(tmp_path), "eagle3": str(tmp_path), "dflash": str(tmp_path)}
    with pytest.raises(CheckpointError, match=r"router 'neural' needs a network .* pass neural_router=FILE"):
        resolve(WhiFlashConfig(**folders, router="neural"))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"neural_router='nope' is not a file"):
        resolve(WhiFlashConfig(**folders, neural_router="nope"))  # type: ignore[arg-type]
    network = tmp_path / "network.safetensors"
    network.touch()
    found = resolve(WhiFlashConfig(**folders, router="neural", neural_router=str(network)))  # type: ignore[arg-type]
    assert (found.neural_router, found.acceptance) == (str(network), None)


def test_no_lookup_drafter_no_lookup_router(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="router 'ngram' with ngram_tokens=0"):
        resolve(WhiFlashConfig(target=str(tmp_path), router="ngram", ngram_tokens=0))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the drafters that come with the package."""
    data = tmp_path / "data"
    entry = registry.Entry(eagle3=str(data / NAME / "eagle3"), dflash=str(data / NAME / "dflash"), embedded=True)
    monkeypatch.setattr(registry, "_DATA", data)
    monkeypatch.setitem(registry.TARGETS, NAME, entry)
    monkeypatch.setattr(registry, "prepare_target", lambda name, **options: tmp_path / "prepared")
    return data / NAME


def test_embedded_target_uses_the_shipped_drafters_and_calibration(shipped: Path, tmp_path: Path) -> None:
    for name in ("eagle3", "dflash"):
        (shipped / name).mkdir(parents=True)
        (shipped / name / "config.json").write_text("{}")
    (shipped / "router.json").write_text('{"entropy_threshold_nats": 0.75}')
    found = resolve(WhiFlashConfig())
    assert found.target == str(tmp_path / "prepared")
    assert (found.eagle3, found.dflash) == (str(shipped / "eagle3"), str(shipped / "dflash"))
    assert (found.router_threshold, found.licences) == (0.75, ("SmolLM2-135M-Instruct: Apache-2.0",))
    own = resolve(WhiFlashConfig(eagle3=str(tmp_path)))
    assert (own.eagle3, own.router_threshold) == (str(tmp_path), registry.DEFAULT_THRESHOLD)


def test_embedded_target_before_its_drafters_are_trained(shipped: Path) -> None:
    assert resolve(WhiFlashConfig(router="off")).dflash is None
    with pytest.raises(CheckpointError, match=r"router 'cost' .*whiflash_engine.training"):
        resolve(WhiFlashConfig())
