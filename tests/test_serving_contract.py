"""What ``whiflash_engine.service`` uses of vLLM's semi-private interfaces is still there (vLLM >=0.32,<0.34)."""

import inspect

import pytest

pytest.importorskip("vllm")


def test_serving_objects_keep_their_shape() -> None:
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

    assert list(inspect.signature(init_app_state).parameters)[:4] == [
        "engine_client",
        "state",
        "args",
        "supported_tasks",
    ]
    assert {"request", "raw_request"} <= set(
        inspect.signature(OpenAIServingChat.create_chat_completion).parameters
    )
    assert hasattr(OpenAIServingChat, "render_chat_request")
    assert {"vllm_xargs", "return_token_ids", "cache_salt"} <= set(ChatCompletionRequest.model_fields)


def test_runner_hooks_keep_their_shape() -> None:
    from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

    assert list(inspect.signature(GPUModelRunner.propose_draft_token_ids).parameters) == [
        "self",
        "scheduler_output",
        "sampled_token_ids",
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "spec_decode_metadata",
        "common_attn_metadata",
        "slot_mappings",
    ]
    assert "logits" in ExecuteModelState._fields
    for name in (
        "_get_eagle3_aux_layers_from_config",
        "_input_fits_in_drafter",
        "sample_tokens",
        "_get_positions",
    ):
        assert hasattr(GPUModelRunner, name)


def test_cpu_worker_still_names_its_runner_by_a_module_global() -> None:
    from vllm.v1.worker import cpu_worker

    assert "CPUModelRunner(self.vllm_config" in inspect.getsource(cpu_worker.CPUWorker.init_device)


def test_the_rejection_sampler_still_looks_its_expansion_up_by_name() -> None:
    from vllm.v1.sample import rejection_sampler

    source = inspect.getsource(rejection_sampler.apply_sampling_constraints)
    assert source.count("expand_batch_to_tokens(") == 3


def test_unknown_and_taken_engine_arguments_are_named() -> None:
    from whiflash_engine.errors import ConfigError
    from whiflash_engine.service.arguments import checked_vllm_args

    assert checked_vllm_args({"max_num_batched_tokens": 256}) == {"max_num_batched_tokens": 256}
    with pytest.raises(ConfigError, match=r"'max_modle_len' \(did you mean 'max_model_len'\?\)"):
        checked_vllm_args({"max_modle_len": 10})
    with pytest.raises(ConfigError, match="'speculative_config' is set by this engine"):
        checked_vllm_args({"speculative_config": {}})


async def test_text_with_other_line_separators_survives_a_stream() -> None:
    import json
    from collections.abc import AsyncIterator
    from types import SimpleNamespace

    from whiflash_engine.service.serving import ChatServing

    async def events() -> AsyncIterator[str]:
        for text in ("a\u2028b", "c\x85d"):
            yield f"data: {json.dumps({'choices': [{'delta': {'content': text}}]}, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"

    async def answer(request: object) -> AsyncIterator[str]:
        return events()

    state = SimpleNamespace(openai_serving_chat=SimpleNamespace(create_chat_completion=answer))
    serving = ChatServing(None, state)  # type: ignore[arg-type]
    body = {"messages": [{"role": "user", "content": "x"}]}
    texts = [chunk["choices"][0]["delta"]["content"] async for chunk in serving.stream(body)]
    assert texts == ["a\u2028b", "c\x85d"]
