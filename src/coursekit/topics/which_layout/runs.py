"""A training step of data, tensor and pipeline parallelism together, on ranks that run: this book's
GPT through the doors of shardlab, and the bytes of its fullest point by the ledger.

    weigh_rank(RunLayout(data_parallel=2, tensor_parallel=2, pipeline_parallel=2, zero_stage=1,
                         microbatches=4))    # on a rank: Counts; lab.py starts the ranks
"""

from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial

import torch
from torch import Tensor, nn

from coursekit.formulas import InvalidQuantity
from ranklab.measure.ledger import Counts, Ledger
from shardlab import zero
from shardlab.gpt import GPT, CoreAttention, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import PipelinePlan, plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.recompute import checkpoint
from shardlab.recompute.layers import checkpoint_every, checkpoint_modules
from shardlab.recompute.selective import checkpoint_selective
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)

EXACT_SCHEDULES = ("GPipe", "1F1B", "eager 1F1B")
SIZES = dict(layers=4, hidden=64, heads=4, vocabulary=256, max_sequence=64)


@dataclass(frozen=True)
class RunLayout:
    """The training of a rank, and how the ranks share it. The microbatches are those of a pipeline,
    or are accumulated. A checkpoint has `recompute_every` layers. `sizes` change SIZES."""

    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    zero_stage: int = 0
    sequence_parallel: bool = False
    regather: bool = False  # inputs of cut layers, in backward
    recompute_policy: int = 0
    recompute_every: int = 1
    microbatches: int = 1
    schedule: str = "1F1B"
    microbatch: int = 2
    shorter_ends: int = 0
    foreach: bool = False  # how the optimizer runs
    bucket_bytes: int = 25 << 20
    sizes: dict = field(default_factory=dict)

    @property
    def config(self) -> GPTConfig:
        return GPTConfig(**{**SIZES, **self.sizes})

    def __str__(self):
        chosen = [each for each in fields(self) if getattr(self, each.name) != usual(each)]
        return ", ".join(f"{each.name} {getattr(self, each.name)}" for each in chosen)

    @property
    def ranks(self) -> int:
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel

    @property
    def stages_per_rank(self) -> int:
        return 2 if self.schedule.startswith("interleaved") else 1


def usual(one: Field):
    return {} if one.default is MISSING else one.default


def layers_of(model: GPT) -> list[nn.Module]:
    return [model.embedding, *model.blocks, model.head]


def stages_of_blocks(layout: RunLayout, model: GPT) -> tuple[list[nn.Module], list[int]]:
    """(layers, how many a stage has): stages of one number of blocks, which a checkpoint may join,
    or with fewer blocks at each end."""
    stages = layout.pipeline_parallel * layout.stages_per_rank
    blocks = [(layout.config.layers + 2 * layout.shorter_ends) // stages] * stages
    blocks[0] -= layout.shorter_ends
    blocks[-1] -= layout.shorter_ends
    joined, counts, first = [], [], 0
    for each in blocks:
        begins = range(first, first + each, layout.recompute_every)
        ends = [min(begin + layout.recompute_every, first + each) for begin in begins]
        joined += [nn.Sequential(*model.blocks[b:end]) for b, end in zip(begins, ends)]
        counts.append(len(begins))
        first += each
    counts[0] += 1
    counts[-1] += 1
    return [model.embedding, *joined, model.head], counts


def planned(
    layout: RunLayout, layers: list[nn.Module], counts: list[int], tokens: Tensor
) -> PipelinePlan:
    """The plan of the pipeline, whose stages hand on own tokens with sequence parallelism."""
    options = dict(stages_per_rank=2) if layout.stages_per_rank > 1 else {}
    lists = schedule(layout.schedule, layout.pipeline_parallel, layout.microbatches, **options)
    plan = plan_pipeline(layers, lists, tokens, counts)
    if not layout.sequence_parallel:
        return plan
    shapes = [(b, s // layout.tensor_parallel, *rest) for (b, s, *rest), _ in plan.outputs]
    outputs = [o._replace(shape=shape) for o, shape in zip(plan.outputs, shapes)]
    return plan._replace(outputs=outputs)


def put_checkpoints(layout: RunLayout, model: nn.Module):
    """Put checkpoints into a model whose parts are parts, and whose shards are shards."""
    core, products = 1, 2  # of recompute_policy
    by = checkpoint_selective if layout.recompute_policy == products else checkpoint
    if layout.recompute_policy == core:
        checkpoint_modules(model, CoreAttention)
    elif layout.recompute_policy and layout.pipeline_parallel > 1:
        if any(isinstance(module, nn.Sequential) for module in model.modules()):
            checkpoint_modules(model, nn.Sequential, by)
    elif layout.recompute_policy:
        model.blocks = checkpoint_every(model.blocks, layout.recompute_every, by)


class RunningRank:
    """This rank's part of the model, its optimizer, and a step of both."""

    def __init__(self, layout: RunLayout, make_plan=planned, collectives=None):
        """`make_plan` may have been asked before; `collectives` are ZeRO's, by default the best."""
        config = layout.config
        self.layout = layout
        self.mesh = mesh = Mesh(
            dp=layout.data_parallel, pp=layout.pipeline_parallel, tp=layout.tensor_parallel
        )
        self.batch = layout.microbatch * (layout.microbatches if mesh.pp.size > 1 else 1)
        torch.manual_seed(0)
        model, self.loss = GPT(config), next_token_loss
        if mesh.pp.size > 1:
            layers, counts = stages_of_blocks(layout, model)
            plan = make_plan(layout, layers, counts, self.tokens())
        if mesh.tp.size > 1:
            table = gpt_plan(config)
            if layout.sequence_parallel:
                table = sequence_parallel(table, regather=layout.regather)
            apply_tensor_parallel(model, table, mesh.tp.group)
            group, words = mesh.tp.group, config.vocabulary
            self.loss = partial(vocabulary_parallel_loss, vocabulary=words, group=group)
        self.net = model
        if mesh.pp.size > 1:
            self.net = Pipeline(layers, plan, self.loss, mesh.pp.group)
        self.parameters = sum(parameter.numel() for parameter in self.net.parameters())
        self.call, self.optimizer = self.sharded(layers_of(model), collectives)
        put_checkpoints(layout, self.net)

    def sharded(self, units: list[nn.Module], collectives):
        """(what is called, its optimizer). A single copy in stage 0 has nobody to talk to."""
        layout, settings = self.layout, dict(foreach=self.layout.foreach)
        if layout.zero_stage == 0 and layout.data_parallel == 1:
            return self.net, torch.optim.AdamW(self.net.parameters(), **settings)
        options = dict(bucket_bytes=layout.bucket_bytes)
        if layout.zero_stage == 3:
            options = dict(units=units)
        if collectives and layout.zero_stage:
            options["collectives"] = collectives
        group, stage = self.mesh.dp.group, layout.zero_stage
        return zero.shard(
            self.net, torch.optim.AdamW, stage=stage, group=group, **options, **settings
        )

    def tokens(self) -> Tensor:
        return torch.zeros(self.batch, self.layout.config.max_sequence, dtype=torch.long)

    def step(self, ledger: Ledger | None = None):
        """A step of a batch. A ledger counts the batch as activations on every rank."""
        tokens, targets = self.tokens(), self.tokens()
        if ledger:
            ledger.count_batch(tokens, targets)
        if self.layout.pipeline_parallel > 1:
            self.net.step(tokens, targets)
        else:
            for _ in range(self.layout.microbatches):
                loss = self.loss(self.call(tokens), targets)  # alive until the next, as in a loop
                loss.backward()
        if self.layout.sequence_parallel:
            sum_gradients(self.optimizer, self.mesh.tp.group)
        self.optimizer.step()
        self.optimizer.zero_grad()


def weigh_rank(layout: RunLayout, **how) -> Counts:
    """Bytes of this rank at the fullest point of its second step."""
    torch.set_num_threads(1)
    rank = RunningRank(layout, **how)
    rank.step()
    with Ledger(rank.net, rank.optimizer) as ledger:
        rank.step(ledger)
    return ledger.peak.bytes


def check_layout(layout: RunLayout):
    """Raises InvalidQuantity where the formulas are not to the byte, or the run would train another
    model."""
    layers, stages = layout.config.layers, layout.pipeline_parallel
    if layout.schedule not in EXACT_SCHEDULES:
        raise InvalidQuantity(
            "schedule",
            layout.schedule,
            f"schedule = {layout.schedule}: what its microbatches keep is known about, not to the"
            f" byte; take one of {', '.join(EXACT_SCHEDULES)}.",
        )
    if (layers + 2 * layout.shorter_ends) % stages:
        raise InvalidQuantity(
            "pipeline_parallel",
            stages,
            f"pipeline_parallel = {stages} with layers = {layers}: the stages of this run have as"
            " many layers each; give a number that divides the layers.",
        )
    if layout.zero_stage == 0 and layout.data_parallel > 1 and stages == 1:
        raise InvalidQuantity(
            "zero_stage",
            0,
            f"zero_stage = 0 with data_parallel = {layout.data_parallel} without a pipeline: the"
            " copies in buckets of data parallelism are weighed in their own lab; give a stage from"
            " 1 to 3.",
        )
