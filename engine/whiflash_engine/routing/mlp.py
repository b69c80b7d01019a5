"""The small networks behind the learned routers, and their safetensors files.

A file holds two linear layers. Their names do not matter, their shapes do: [width, hidden] with a bias of
[width], then [outputs, width] with a bias of [outputs]. That is the form of the public WhiFlash routers.
"""

import json
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from whiflash_engine.errors import CheckpointError

WIDTH = 512


class RouterMlp(nn.Module):
    """Two linear layers with a GELU between: [..., hidden] → [..., outputs]."""

    def __init__(self, hidden: int, outputs: int, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width)
        self.down = nn.Linear(width, outputs)

    def forward(self, states: Tensor) -> Tensor:
        """Return the outputs for ``states`` [..., hidden]."""
        out: Tensor = self.down(nn.functional.gelu(self.up(states)))
        return out


def save_mlp(model: RouterMlp, path: Path, notes: Mapping[str, object]) -> None:
    """Write the network with ``notes`` (plain JSON data) as the file's metadata, in bfloat16."""
    tensors = {name: tensor.detach().bfloat16().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, path, {"whiflash": json.dumps(dict(notes))})


def load_mlp(path: Path, hidden: int) -> tuple[RouterMlp, dict[str, object]]:
    """Return the network in ``path`` and its notes (empty for a file of others).

    Raises :class:`CheckpointError` for a damaged file, or one that is no router for states of size ``hidden``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
            notes: dict[str, object] = json.loads((file.metadata() or {}).get("whiflash", "{}"))
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"router file {path} cannot be read ({error}): train or fetch it again") from error
    weights = [tensor for tensor in tensors.values() if tensor.dim() == 2]
    biases = [tensor for tensor in tensors.values() if tensor.dim() == 1]
    pairs = ((a, b) for a, b in permutations(weights, 2) if a.shape[1] == hidden and b.shape[1] == a.shape[0])
    up, down = next(pairs, (None, None))
    if len(tensors) != 4 or up is None or down is None:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in sorted(tensors.items()))
        raise CheckpointError(
            f"router file {path} does not fit a target of hidden size {hidden}: it holds {shapes}; wanted are "
            f"[width, {hidden}], [width], [outputs, width], [outputs]"
        )
    model = RouterMlp(hidden, down.shape[0], up.shape[0])
    up_bias = next((b for b in biases if b.shape[0] == up.shape[0]), None)
    down_bias = next((b for b in biases if b is not up_bias and b.shape[0] == down.shape[0]), None)
    if up_bias is None or down_bias is None:
        raise CheckpointError(f"router file {path} lacks the biases of its two layers: train or fetch it again")
    model.load_state_dict({"up.weight": up, "up.bias": up_bias, "down.weight": down, "down.bias": down_bias})
    return model.eval().requires_grad_(False), notes
