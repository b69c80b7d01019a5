"""Turns the embedded GGUF file into a folder that vLLM and transformers load: safetensors and tokenizer."""

from pathlib import Path

from whiflash_engine.errors import CheckpointError

TEMPLATE = Path(__file__).parent / "templates" / "smollm2_tools.jinja"
"""Chat template with tools; the model's own knows none."""

EOS = ("<|im_end|>", 2)


def convert_gguf(source: Path, folder: Path) -> None:
    """Dequantise ``source`` to bfloat16 safetensors in ``folder``, with the tokenizer and our template.

    Takes about 25 s and 1 GB of memory; transformers shows its own progress bars meanwhile. bfloat16 holds
    Q4_1's values well enough and halves the file.
    """
    try:
        _convert(source, folder)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"reading {source.name} needs torch, transformers, accelerate and gguf ({reason}): "
            "install the extra `cpu` or `cuda`"
        ) from error


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if (tokenizer.eos_token, tokenizer.eos_token_id) != EOS:
        raise CheckpointError(
            f"{source.name} ends turns with {tokenizer.eos_token!r} ({tokenizer.eos_token_id}), "
            f"expected {EOS[0]!r} ({EOS[1]}): this transformers version reads it differently"
        )
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
