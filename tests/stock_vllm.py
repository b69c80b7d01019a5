"""Run stock vLLM with one drafter, in a process of its own: ``stock_vllm.py off|eagle3|dflash CONFIG.json``.

CONFIG has ``target``, ``drafter``, ``draft_tokens``, ``prompts`` and ``max_tokens``. Prints one JSON line:
per prompt the token ids and the accepted draft tokens of every round.
"""

import json
import os
import sys
from pathlib import Path


def main(method: str, config: dict[str, object]) -> None:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    drafting = {
        "speculative_config": {
            "method": method,
            "model": config["drafter"],
            "num_speculative_tokens": config["draft_tokens"],
        },
        "per_request_spec_decode_metrics": "detailed",
    }
    llm = LLM(
        str(config["target"]),
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=4,
        **(drafting if method != "off" else {}),  # type: ignore[arg-type]
    )
    sampling = SamplingParams(temperature=0, max_tokens=config["max_tokens"])
    answers = []
    for prompt in config["prompts"]:  # type: ignore[attr-defined]
        (output,) = llm.chat([{"role": "user", "content": prompt}], sampling, use_tqdm=False)
        metrics = output.outputs[0].spec_decode_metrics
        accepted = list(metrics.per_step_accepted) if metrics is not None else []
        answers.append({"token_ids": list(output.outputs[0].token_ids), "accepted": accepted})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
