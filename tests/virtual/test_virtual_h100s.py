"""Eight virtual H100s, as a reader has them in a notebook."""

import pytest
import torch
from night import at_night

from coursekit.formulas import PRESETS, quantities
from coursekit.lab.virtual import (
    gpt_in_bf16,
    virtual_gpu,
    virtual_gpus,
    virtual_step,
    virtual_step_figure,
)
from shardlab import zero
from shardlab.gpt import next_token_loss
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)


def stage_3(model, prefetch):
    units = [model.embedding, *model.blocks, model.head]
    adam = dict(stage=3, units=units, prefetch=prefetch, fused=True)
    return zero.shard(model, torch.optim.AdamW, **adam)


def step_of(prefetch):
    return virtual_step(stage_3, prefetch=prefetch)


@pytest.mark.slow
def test_a_reader_sees_stage_3_wait_and_changes_one_argument():
    """Must catch: prefetch that hides nothing; a last unit that backward asks for; a step that
    depends on the wall's clock; a picture with a shape for each of a thousand kernels; an update
    that has no phase of its own."""
    waits, ahead = step_of(False), step_of(True)
    assert waits.computing_seconds < ahead.computing_seconds  # beside messages, by contention
    assert waits.exposed_seconds > 0.15 * waits.seconds
    assert ahead.exposed_seconds < 0.25 * waits.exposed_seconds  # the loss hides a gather
    assert step_of(True).spans == ahead.spans
    phases = {span.phase for span in ahead.spans if span.stream == "compute"}
    assert phases == {"forward", "backward", "update"}
    drawn = virtual_step_figure(ahead, "stage 3")
    assert len(drawn.to_json()) < 20_000
    *_, idle, messages = drawn.data
    assert idle.name == "idle" and idle.marker.pattern.shape and not idle.y[0]
    assert sum(idle.x) == pytest.approx(1e3 * ahead.idle_seconds(), rel=0.05)
    assert messages.name == "messages" and {*messages.y} == {1}


def test_each_preset_of_a_gpu_is_a_virtual_one():
    """Must catch: a GPU whose links nobody knows; bf16 on a GPU that has none."""
    for name in PRESETS["gpu"]:
        rates = virtual_gpus(8, gpu=name).gpu.flops_per_second
        assert (torch.bfloat16 in rates) == (not name.startswith(("V100", "T4")))


def waits_for_messages(width, sequence, chunks):
    """Percent of a step of tensor parallelism, and its milliseconds."""
    with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
        sizes = dict(hidden=width, heads=width // 128, max_sequence=min(width, 4096))
        model = gpt_in_bf16(**sizes, tied_head=1)
        plan = sequence_parallel(gpt_plan(model.config)) if sequence else gpt_plan(model.config)
        apply_tensor_parallel(model, overlapped(plan, chunks) if chunks else plan)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(2, model.config.max_sequence, dtype=torch.long)

        def train():
            vocabulary_parallel_loss(model(tokens), tokens, 50304).backward()
            if sequence:
                sum_gradients(optimizer)
            optimizer.step()
            optimizer.zero_grad()

        train()
        with gpu.step() as step:
            train()
    assert step.host_waits == 0
    return round(100 * step.exposed_seconds / step.seconds), round(1e3 * step.seconds, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "width, sequence, shares",
    [
        (2048, False, [(24, 6.7), (16, 6.0), (17, 6.5)]),
        *at_night(
            (2048, True, [(41, 8.1), (32, 7.1), (24, 8.4)]),
            (8192, False, [(16, 58.2), (9, 53.6), (5, 52.3)]),
        ),
    ],
)
def test_what_the_page_says_of_overlap(width, sequence, shares):
    """Must catch: weight gradients made before the message leaves; chunks that are summed one after
    the other."""
    assert [waits_for_messages(width, sequence, chunks) for chunks in (0, 1, 4)] == shares


@pytest.mark.nightly  # by day its closed form, test_waits_on_the_virtual_device
def test_what_the_page_says_of_a_read():
    """Must catch: a read that the host does not wait for; an update whose launches are hidden."""
    assert [step_that_reads(when) for when in (None, "before", "after")] == [18.4, 19.5, 18.4]


def step_that_reads(when):
    with virtual_gpu() as gpu:
        model = gpt_in_bf16(**quantities(model="GPT-2 124M"))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(2, 1024, dtype=torch.long)
        for _ in range(3):
            with gpu.step() as step:
                loss = next_token_loss(model(tokens), tokens)
                loss.backward()
                loss.item() if when == "before" else None
                optimizer.step()
                loss.item() if when == "after" else None
                optimizer.zero_grad()
    return round(1e3 * step.seconds, 1)


@pytest.mark.nightly  # by day its closed form
def test_what_the_page_says_of_offload():
    """The dropdown of offload in the chapter on ZeRO in time has these milliseconds.

    Must catch: gradients that leave for the host after backward; a second wait of the host."""

    def offloaded(model):
        return zero.shard(model, torch.optim.AdamW, stage=2, offload=True, fused=True)

    step = virtual_step(offloaded, sizes=dict(layers=24))
    copies = [span for span in step.spans if span.name == "copy to the host"]
    taken = sum(span.end - span.start for span in copies) / 1e6
    assert [round(taken, 1), round(1e3 * step.idle_seconds("host"), 1)] == [7.0, 0.5]
    assert step.host_waits == 1
