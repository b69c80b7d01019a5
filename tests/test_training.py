"""Training: unrolled forms equal step-by-step inference, splits do not leak, exports have public names."""

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing import RoundCosts, RouterSettings, Signals, build_routers
from whiflash_engine.routing.__main__ import app as routing_app
from whiflash_engine.training import dflash, eagle3, export, features, files, labels, loop, replay, stages
from whiflash_engine.training.features import DFLASH_TAPS, EAGLE3_TAPS, TAPS, Sequence, load
from whiflash_engine.training.generate import cut_loop
from whiflash_engine.training.layers import rope
from whiflash_engine.training.prompts import KINDS, Split, all_prompts, split_of
from whiflash_engine.training.target import Target, new_dflash, new_eagle3, read_target

HIDDEN, VOCAB, BLOCKS = 24, 64, 3


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A random Llama-shaped target on disk: 3 blocks, hidden 24, 3 heads of 8, 1 KV head."""
    torch.manual_seed(0)
    folder = tmp_path / "target"
    folder.mkdir()
    config = {
        "tie_word_embeddings": True,
        "hidden_size": HIDDEN,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 40,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "num_hidden_layers": BLOCKS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for block in range(BLOCKS):
        name = f"model.layers.{block}."
        shapes |= {name + f"self_attn.{p}_proj.weight": (8, HIDDEN) for p in "kv"}
        shapes |= {name + f"self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qo"}
        shapes |= {name + f"mlp.{p}_proj.weight": (40, HIDDEN) for p in ("gate", "up")}
        shapes[name + "mlp.down_proj.weight"] = (HIDDEN, 40)
        shapes |= {name + f"{p}_layernorm.weight": (HIDDEN,) for p in ("input", "post_attention")}
    save_file({name: 0.2 * torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return read_target(folder)


def sequence(length: int, prompt: int, seed: int = 1, **facts: Any) -> Sequence:
    """A recorded answer with random states."""
    generator = torch.Generator().manual_seed(seed)
    flags: dict[str, Any] = {"greedy": True, "constrained": False, "split": "train"} | facts
    return Sequence(
        ids=torch.randint(VOCAB, (length,), generator=generator),
        taps=torch.randn(length, len(TAPS) * HIDDEN, generator=generator).bfloat16(),
        final=torch.randn(length, HIDDEN, generator=generator).bfloat16(),
        prompt=prompt,
        kind="code",
        **flags,
    )


VOCABULARY = torch.arange(1, 49)


def plain_attention(layer: torch.nn.Module, mixed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Attention of the last row over all rows, written the long way."""
    q = layer.queries(mixed[-1:], positions[-1:])[0]
    k, v = layer.keys_values(mixed, positions)
    weights = ((q @ k[:, 0].T) * 8**-0.5).softmax(dim=-1)
    return layer.o_proj((weights @ v[:, 0]).flatten())


def one_chain(model: eagle3.Eagle3, s: Sequence, start: int, tokens: list[int]) -> list[torch.Tensor]:
    """Decode one EAGLE-3 round as an engine does: append a row to the cache, look at the last row."""
    rows = s.prompt + start
    layer = model.midlayer
    states = model.fc(s.select(EAGLE3_TAPS)[:rows])
    embeds = model.embedding[s.ids[1 : rows + 1]]
    outs = []
    for token in [None, *tokens]:
        if token is not None:
            states = torch.cat([states, outs[-1][None]])
            embeds = torch.cat([embeds, model.embedding[token][None]])
        mixed = layer.mix(embeds, states)
        out = states[-1] + plain_attention(layer.self_attn, mixed, torch.arange(len(mixed)))
        outs.append(out + layer.mlp(layer.post_attention_layernorm(out)))
    return outs


def test_eagle3_unrolled_training_equals_step_by_step_decoding(target: Target) -> None:
    model = new_eagle3(target, VOCABULARY, seed=0)
    batch = [sequence(19, 6), sequence(12, 4, seed=2)]
    chains = model.start(batch)
    states = [chains.states]
    for step in (1, 2, 3):
        model.step(chains, eagle3.teacher_tokens(batch, step))
        states.append(chains.states)
    at = 0
    for s in batch:
        count = s.length - 1 - s.prompt
        for start in range(count - 3):
            tokens = s.ids[s.prompt + start + 1 :][:3].tolist()
            for step, expected in enumerate(one_chain(model, s, start, tokens)):
                torch.testing.assert_close(states[step][at + start], expected, rtol=1e-4, atol=1e-4)
        at += count
    assert at == len(chains.states)


def test_eagle3_draft_feeds_its_own_tokens_back(target: Target) -> None:
    model = new_eagle3(target, VOCABULARY, seed=0)
    s = sequence(15, 5)
    drafted = eagle3.draft(model, [s], steps=4).tokens
    outs = one_chain(model, s, 3, drafted[3, :3].tolist())
    expected = VOCABULARY[model.logits(torch.stack(outs)).argmax(-1)]
    assert drafted[3].tolist() == expected.tolist()


def test_dflash_block_sees_the_context_before_its_anchor_and_itself(target: Target) -> None:
    model = new_dflash(target, mask_token=0, layers=2, seed=0)
    batch = [sequence(20, 6), sequence(14, 5, seed=2)]
    together = model(dflash.Blocks(batch, [torch.tensor([6, 11]), torch.tensor([9])]))
    for row, (s, anchor) in enumerate([(batch[0], 6), (batch[0], 11), (batch[1], 9)]):
        context = model.hidden_norm(model.fc(s.select(DFLASH_TAPS)[:anchor]))
        positions = torch.arange(anchor + dflash.BLOCK)
        x = model.embedding[torch.tensor([int(s.ids[anchor])] + [0] * (dflash.BLOCK - 1))]
        for layer in model.layers:
            normed = torch.cat([context, layer.input_layernorm(x)])
            q = layer.self_attn.queries(normed[anchor:], positions[anchor:])
            k, v = layer.self_attn.keys_values(normed, positions)
            weights = (torch.einsum("qhd,kd->hqk", q, k[:, 0]) * 8**-0.5).softmax(-1)
            mixed = torch.einsum("hqk,kd->qhd", weights, v[:, 0]).flatten(1)
            x = x + layer.self_attn.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        torch.testing.assert_close(together[row], model.norm(x[1:]), rtol=1e-4, atol=1e-4)


def test_dflash_loss_ignores_positions_past_the_answer(target: Target) -> None:
    model = new_dflash(target, mask_token=0, layers=1, seed=0)
    s = sequence(16, 5)
    everything = torch.arange(VOCAB)
    last = dflash.Blocks([s], [torch.tensor([s.length - 2])])
    loss, right = dflash.loss(model, last, everything)
    label = labels.soft_labels(s, model.embedding, everything)[-1]
    expected = -(label * (model(last)[0, 0] @ model.embedding.T).log_softmax(-1)).sum()
    torch.testing.assert_close(loss, expected)
    assert right[1:] == [0.0] * (dflash.BLOCK - 2)


def test_labels_of_constrained_text_are_the_tokens_alone(target: Target) -> None:
    s = sequence(12, 4, constrained=True)
    label = labels.soft_labels(s, target.embedding[VOCABULARY], VOCABULARY)
    for row, token in zip(label, s.ids[5:].tolist(), strict=True):
        if token in VOCABULARY.tolist():
            assert VOCABULARY[row.argmax()] == token
            assert row.sum() == 1
        else:
            assert row.sum() == 0


def test_d2t_and_t2d_describe_the_same_vocabulary(target: Target, tmp_path: Path) -> None:
    vocabulary = torch.tensor([0, 3, 4, 9, 40, 63])
    export.export_eagle3(new_eagle3(target, vocabulary, seed=0), target, tmp_path / "e", "card")
    tensors = load_file(tmp_path / "e" / "model.safetensors")
    assert (tensors["d2t"] + torch.arange(6)).tolist() == vocabulary.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == vocabulary.tolist()


def test_eagle3_export_has_the_public_names_and_shapes(target: Target, tmp_path: Path) -> None:
    model = new_eagle3(target, VOCABULARY, seed=0)
    export.export_eagle3(model, target, tmp_path / "e", "card")
    tensors = load_file(tmp_path / "e" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "d2t": (48,),
        "t2d": (VOCAB,),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "lm_head.weight": (48, HIDDEN),
        "norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "midlayer.self_attn.q_proj.weight": (24, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (8, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (8, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, 24),
        "midlayer.mlp.gate_proj.weight": (40, HIDDEN),
        "midlayer.mlp.up_proj.weight": (40, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, 40),
    }
    config = json.loads((tmp_path / "e" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == 48
    s = sequence(12, 4)
    model.load_state_dict({n: p.bfloat16().float() for n, p in model.state_dict().items()})
    again = export.load_eagle3(tmp_path / "e", target)
    assert torch.equal(eagle3.draft(again, [s], 3).tokens, eagle3.draft(model, [s], 3).tokens)


def test_a_pruned_head_drafts_like_the_whole_one_among_the_kept_tokens(target: Target) -> None:
    model = new_eagle3(target, VOCABULARY, seed=0)
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[5, 9, 30, 48]] = 7
    pruned = export.prune_vocabulary(model, counts, size=4)
    assert pruned.vocabulary.tolist() == [5, 9, 30, 48]
    states = torch.randn(6, HIDDEN)
    rows = labels.positions_in(VOCABULARY, pruned.vocabulary)
    torch.testing.assert_close(pruned.logits(states), model.logits(states)[:, rows])
    assert export.prune_vocabulary(model, counts, size=48) is model


def test_dflash_export_has_the_public_names_and_shapes(target: Target, tmp_path: Path) -> None:
    model = new_dflash(target, mask_token=7, layers=2, seed=0)
    export.export_dflash(model, target, tmp_path / "d", "card")
    tensors = load_file(tmp_path / "d" / "model.safetensors")
    assert {n for n in tensors if not n.startswith("layers.")} == {
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
    }
    assert tensors["fc.weight"].shape == (HIDDEN, len(DFLASH_TAPS) * HIDDEN)
    assert {n.removeprefix("layers.1.") for n in tensors if n.startswith("layers.1.")} == {
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        *(f"self_attn.{p}_proj.weight" for p in "qkvo"),
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
    }
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    assert config["dflash_config"] == {
        "mask_token_id": 7,
        "target_layer_ids": [tap - 1 for tap in DFLASH_TAPS],
    }
    assert (config["num_key_value_heads"], config["head_dim"]) == (1, 8)


def test_an_interrupted_run_ends_like_an_uninterrupted_one(target: Target, tmp_path: Path) -> None:
    sequences = [sequence(14, 5, seed=n) for n in range(5)]
    head = target.embedding[VOCABULARY]

    def step_loss(
        model: eagle3.Eagle3, batch: list[Sequence], generator: torch.Generator, progress: float
    ) -> tuple[torch.Tensor, list[float]]:
        return eagle3.loss(model, batch, head, 3, generator)

    def run(path: Path, *stops: int) -> dict[str, torch.Tensor]:
        for stop in stops:
            model = new_eagle3(target, VOCABULARY, seed=0)
            # The rate must not depend on where the run is stopped, so only the stop differs.
            options = loop.LoopOptions(steps=8, batch=2, rate=1e-3, warmup=2, save_every=1, stop_after=stop)
            loss = partial(step_loss, model)
            loop.train(model, sequences, loss, options, path)
        return dict(model.state_dict())

    whole, halves = run(tmp_path / "a.pt", 8), run(tmp_path / "b.pt", 3, 8)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    start = new_eagle3(target, VOCABULARY, seed=0).state_dict()
    assert not torch.equal(whole["fc.weight"], start["fc.weight"])


def test_rounds_of_a_replay_follow_one_another() -> None:
    s = sequence(10, 4)
    drafted = torch.full((5, 2), -7)
    drafted[0] = s.ids[5:7]  # both right: the next round starts 3 tokens on
    drafted[3, 0] = s.ids[8]  # one right
    lengths = replay.accepted_lengths(drafted, s)
    assert lengths.tolist() == [2, 0, 0, 1, 0]
    tally = replay.Tally()
    tally.walk(lengths, width=2)
    assert tally.report() == {
        "rounds": 2,
        "mean_acceptance_length": 2.5,
        "mean_over_answers": 2.5,
        "acceptance_by_position": [1.0, 0.5],
    }


def test_means_over_rounds_answers_and_segments() -> None:
    tally = replay.Tally()
    tally.walk(torch.tensor([1, 1, 1, 1]), width=1)  # two rounds of two tokens
    tally.walk(torch.tensor([0, 0, 0, 0]), width=1)  # four rounds of one
    assert tally.report()["mean_acceptance_length"] == round(8 / 6, 3)
    assert tally.report()["mean_over_answers"] == 1.5
    parts = {"code": 3.0, "prose": 1.0}
    report: dict[str, dict[str, Any]] = {
        "eagle3": {name: {"mean_acceptance_length": v} for name, v in parts.items()}
    }
    report["eagle3"]["all"] = tally.report()
    lines = [line.split() for line in replay.table(report).splitlines()]
    assert [line[-1] for line in lines] == ["eagle3", "3.000", "1.000", "1.333", "1.500", "2.000"]


def test_draft_tokens_past_the_answer_are_never_accepted() -> None:
    s = sequence(8, 5)
    assert replay.accepted_lengths(torch.stack([s.ids[[6, 7, 7]], s.ids[[7, 7, 7]]]), s).tolist() == [2, 1]


def test_no_family_is_on_both_sides_and_every_kind_is_on_each() -> None:
    prompts = all_prompts()
    sides = {split: {p.family for p in prompts if p.split == split} for split in get_args(Split)}
    assert sum(map(len, sides.values())) == len({p.family for p in prompts})
    for families in sides.values():
        assert {family.split("/")[0] for family in families} == set(KINDS)


def test_prompts_depend_on_the_seed_alone() -> None:
    assert all_prompts(3) == all_prompts(3)
    assert all_prompts(3) != all_prompts(4)
    assert len({(p.prefix, p.constraint and json.dumps(p.constraint), json.dumps(p.messages))
                for p in all_prompts()}) > 2000  # fmt: skip


def test_a_looping_answer_is_cut_and_a_plain_one_is_not() -> None:
    looping = [1, 2, *[5, 6, 7] * 9]
    assert cut_loop(looping) == looping[: 2 + 12]
    assert cut_loop(list(range(50))) == list(range(50))


FAMILIES = {
    split: next(name for name in map("code/{}".format, range(1000)) if split_of(name) == split)
    for split in get_args(Split)
}


def write_answers(work: Path, recorded: list[Sequence]) -> None:
    """Write what `training generate` writes."""
    rows = [
        {"prompt": s.ids[: s.prompt].tolist(), "answer": s.ids[s.prompt :].tolist(), "kind": s.kind,
         "temperature": 0.0, "constrained": s.constrained, "family": FAMILIES[s.split]}
        for s in recorded
    ]  # fmt: skip
    files.write_jsonl(work / "text-00-0000.jsonl", rows)
    features.write_shard(work / "features-00-0000.safetensors", rows, [(s.taps, s.final) for s in recorded])


def test_features_survive_the_disk(tmp_path: Path) -> None:
    written = [sequence(9, 4), sequence(6, 4, seed=2), sequence(12, 4, seed=3, split="held_out", constrained=True)]
    write_answers(tmp_path, written)
    first, last = load(tmp_path)  # the second answer is too short to be worth keeping
    assert torch.equal(first.select(EAGLE3_TAPS), written[0].select(EAGLE3_TAPS))
    assert (first.prompt, first.kind, first.ids.tolist()) == (4, "code", written[0].ids.tolist())
    assert (first.split, first.constrained, last.split, last.constrained) == ("train", False, "held_out", True)


def test_the_stages_make_drafters_and_routers_that_replay_alike(target: Target, tmp_path: Path) -> None:
    work, out, folder = tmp_path / "work", tmp_path / "out", tmp_path / "target"
    splits = ["train"] * 4 + ["calibration"] * 5 + ["held_out"] * 2
    write_answers(work, [sequence(14, 5, seed=n, split=split) for n, split in enumerate(splits)])
    options = loop.LoopOptions(steps=4, batch=2, rate=1e-3, warmup=1)
    stages.train_eagle3(folder, work, options, size=48)
    stages.train_dflash(folder, work, options, anchors=3, layers=2)
    stages.export(folder, work, out)
    report = stages.replay(folder, work, out, per_kind=None)
    for name in ("eagle3", "dflash"):
        card = (out / name / "README.md").read_text()
        assert "4 answers" in card
        assert f"{report[name]['code']['mean_acceptance_length']:.3f}" in card
        assert report[name]["code"]["rounds"] > 0
    routing = ["calibrate", "--target", str(folder), "--work", str(work), "--drafters", str(out)]
    result = CliRunner().invoke(routing_app, routing)
    assert result.exit_code == 0, result.output
    found = json.loads((out / "router.json").read_text())
    assert found["answers"] == 5
    for name in ("eagle3", "dflash"):
        length = found["held_out"][name]["mean_acceptance_length"]
        assert length == pytest.approx(report[name]["code"]["mean_acceptance_length"], abs=1e-3)
    routers = build_routers(["eagle3", "dflash", "ngram"], router_settings(out), RoundCosts())
    for name in ("neural", "cost"):
        choice = routers[name].choose(Signals(hidden=torch.zeros(HIDDEN)), {"eagle3": 4, "dflash": 7})
        assert choice is None or choice.drafter in ("eagle3", "dflash")


def router_settings(folder: Path) -> RouterSettings:
    return RouterSettings(
        entropy_threshold=1.0,
        hidden=HIDDEN,
        neural=folder / "neural_router.safetensors",
        acceptance=folder / "acceptance.safetensors",
    )


def test_a_draft_vocabulary_larger_than_the_targets_is_refused(target: Target, tmp_path: Path) -> None:
    write_answers(tmp_path, [sequence(12, 4)])
    with pytest.raises(CheckpointError, match="65 is larger than the target's 64"):
        stages.train_eagle3(tmp_path / "target", tmp_path, loop.LoopOptions(1, 1, 1e-3), size=65)


def test_rope_depends_on_distance_only() -> None:
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    near = rope(q, torch.tensor([3]), 1e4) * rope(k, torch.tensor([1]), 1e4)
    far = rope(q, torch.tensor([53]), 1e4) * rope(k, torch.tensor([51]), 1e4)
    torch.testing.assert_close(near.sum(), far.sum())
