"""Eight virtual H100s, as a reader has them in a notebook."""

import torch

from coursekit.formulas import PRESETS
from coursekit.lab.virtual import virtual_gpus
from coursekit.show.svg.virtual import virtual_step_svg
from shardlab import zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss


def step_of(prefetch):
    with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
        torch.set_default_dtype(torch.bfloat16)
        try:
            sizes = dict(layers=4, hidden=2048, heads=16, max_sequence=2048, vocabulary=50304)
            model = GPT(GPTConfig(**sizes, tied_head=0))
        finally:
            torch.set_default_dtype(torch.float32)
        units = [model.embedding, *model.blocks, model.head]
        adam = dict(stage=3, units=units, prefetch=prefetch, fused=True)
        model, optimizer = zero.shard(model, torch.optim.AdamW, **adam)
        tokens = torch.zeros(2, 2048, dtype=torch.long)

        def train():
            next_token_loss(model(tokens), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        train()
        with gpu.step() as step:
            train()
    return step


def test_a_reader_sees_stage_3_wait_and_changes_one_argument():
    """Must catch: prefetch that hides nothing; a step that depends on the wall's clock; a picture
    with a shape for each of a thousand kernels; an update that has no phase of its own."""
    waits, ahead = step_of(False), step_of(True)
    assert waits.computing_seconds == ahead.computing_seconds
    assert waits.exposed_seconds > 0.15 * waits.seconds
    assert ahead.exposed_seconds < 0.35 * waits.exposed_seconds
    assert step_of(True).spans == ahead.spans
    phases = {span.phase for span in ahead.spans if span.stream == "compute"}
    assert phases == {"forward", "backward", "update"}
    drawn = virtual_step_svg(ahead, "stage 3")
    assert len(drawn) < 20_000 and "nothing computes" in drawn


def test_each_preset_of_a_gpu_is_a_virtual_one():
    """Must catch: a GPU whose links nobody knows; bf16 on a GPU that has none."""
    for name in PRESETS["gpu"]:
        rates = virtual_gpus(8, gpu=name).gpu.flops_per_second
        assert (torch.bfloat16 in rates) == (not name.startswith(("V100", "T4")))
