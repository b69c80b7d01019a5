"""The platform plugin speaks up only where zentorch can work."""

from collections.abc import Iterator

import pytest

from whiflash_engine import platform


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    platform.zen_usable.cache_clear()
    yield
    platform.zen_usable.cache_clear()


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIFLASH_ZEN", "0")
    assert platform.platform_plugin() is None


def test_other_processors_are_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_amd_processor", lambda: False)
    assert platform.platform_plugin() is None


def test_without_zentorch_the_choice_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_cpu_build", lambda: True)
    monkeypatch.setattr(platform, "_amd_processor", lambda: True)
    monkeypatch.setattr(platform, "find_spec", lambda name: None)
    assert platform.platform_plugin() is None


def test_a_cuda_build_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_cpu_build", lambda: False)
    assert platform.platform_plugin() is None


def test_where_it_can_work_it_names_vllms_own_class(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zentorch")
    monkeypatch.setattr(platform, "_amd_processor", lambda: True)
    monkeypatch.setattr(platform, "_cpu_build", lambda: True)
    assert platform.platform_plugin() == platform.ZEN_PLATFORM
