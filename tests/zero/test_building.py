"""A model from the meta device, filled from a file that only rank 0 reads, is the plain model: with
our stage 3 and with FSDP2."""

import pytest
import torch
import torch.distributed as dist

from coursekit.topics.zero.building import build_sharded, build_with_fsdp2
from shardlab.gpt import GPT, GPTConfig

SIZES = dict(
    layers=3, hidden=12, heads=3, key_value_heads=1, feed_forward=20, vocabulary=17, max_sequence=7
)
TOKENS = torch.arange(14).reshape(2, 7) % 17


@pytest.fixture
def saved(tmp_path):
    """(path of a state dict, logits of the model that wrote it), tied or not."""

    def save(tied):
        torch.manual_seed(5)
        model = GPT(GPTConfig(**SIZES, tied_head=tied))
        with torch.no_grad():
            for parameter in model.parameters():  # biases and norms, too
                parameter.normal_()
        path = tmp_path / "model.pt"
        torch.save(model.state_dict(), path)
        return path, model(TOKENS)

    return save


def built(build, config, path, tokens):
    """(logits, bytes of the parameters that stay), on a rank that finds no file unless it is
    rank 0."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(dist.get_rank())
    model = build(config, path if dist.get_rank() == 0 else "/nowhere", "cpu")
    shards = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    kept = sum(shard.nbytes for shard in shards)
    return model(tokens).detach(), kept


@pytest.mark.parametrize(
    "build, tied", [(build_sharded, True), (build_sharded, False), (build_with_fsdp2, False)]
)
def test_a_model_from_the_meta_device(three, saved, build, tied):
    """FSDP2 pads rows, hence at most a half. Must catch: a rank that keeps what to_empty left in
    its memory, a unit that is skipped, a name without the prefix of its unit, a file that every
    rank reads, a whole model on a rank."""
    path, expected = saved(tied)
    config = GPTConfig(**SIZES, tied_head=tied)
    whole = sum(p.nbytes for p in GPT(config).parameters())
    for logits, kept in three.run(built, build, config, path, TOKENS):
        assert torch.allclose(logits, expected, rtol=1e-5, atol=1e-4) and kept < whole / 2
