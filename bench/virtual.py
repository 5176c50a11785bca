"""This book's techniques beside each of PyTorch's own in virtual time: eight H100s, and nodes of
eight with a network card of 400 Gbit/s for each.

The real code of both runs on tensors without contents; kernels and messages take the times that
were recorded on an H100, see coursekit.lab.virtual. A step in bf16 with fused AdamW, 4,096 tokens a
rank. Ranks that do the same are one rank and its copies (VirtualGPUs); stages of a pipeline are
real processes that tell each other their times. Virtual time is exact: the same numbers on every
machine.
"""

import argparse
import gc
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
import torch.distributed as dist

from coursekit.formulas import quantities
from coursekit.lab.virtual import virtual_gpu, virtual_gpus
from coursekit.recordings.races import Result, Way, step_by, train_step
from coursekit.recordings.recordings import Hardware, Recording, Row, read_recording
from coursekit.topics.data_parallelism import runs as data_parallelism
from coursekit.topics.long_sequences import runs as long_sequences
from coursekit.topics.pipelines.peers import TorchPipeline
from coursekit.topics.tensor_parallelism import runs as tensor_parallelism
from coursekit.topics.zero import runs as zero
from coursekit.topics.zero.deepspeed import deepspeed_on_gloo
from ranklab.ranks import ranks
from ranklab.virtual import OutOfMemory
from shardlab.context_parallel.hardened.mixes import Mix
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.pipelines import schedules
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.zero import shard
from shardlab.zero.hardened.buckets import BUCKET_BYTES

GPU = "H100 SXM 80GB"
NODE = 8
GPUS = 8, 16, 24, 64  # the last two in ZeRO alone, and of one model; 24 divides few units
TOKENS = 4096  # of a rank in a step
CHUNKS = 1  # of a row layer's tokens: more pay more latency than they hide here
MICROBATCHES = 8  # of TOKENS each, in a pipeline; with more ranks one for each, as 1F1B asks for
PART = "virtual time"
HARDWARE = Hardware(f"virtual {GPU}", "virtual", 1, quantities(gpu=GPU)["gpu_memory_bytes"])
MOST = 1.002  # of the best peer's step


class Model(NamedTuple):
    sizes: dict[str, int]
    tokens: int  # of a sequence

    def build(self) -> GPT:
        torch.set_default_dtype(torch.bfloat16)
        try:
            return GPT(GPTConfig(**self.sizes))
        finally:
            torch.set_default_dtype(torch.float32)

    def batch(self, tokens: int = TOKENS) -> torch.Tensor:
        """Whole sequences, one at least: ranks that share it have a part each."""
        return torch.zeros(max(1, tokens // self.tokens), self.tokens, dtype=torch.long)


GPT_SIZES = dict(hidden=2048, heads=16, vocabulary=50304, max_sequence=2048, tied_head=0)
SMALL = "two layers of the GPT"  # which a test runs again
LONG = "two layers of Llama 3 8B, 64K tokens"  # eight ranks have 8,192 each
MODELS = {
    SMALL: Model(dict(**GPT_SIZES, layers=2), 2048),
    "GPT 1.3B": Model(dict(**GPT_SIZES, layers=24), 2048),
    "Llama 3 8B": Model(quantities(model="Llama 3 8B"), 4096),
    LONG: Model(quantities(model="Llama 3 8B") | dict(layers=2, max_sequence=1 << 16), 1 << 16),
}


class Found(NamedTuple):
    """One step; of the stages of a pipeline it is the mean, and the most waits and bytes of one. Of
    one that runs out of memory there are the bytes alone."""

    seconds: float
    exposed_seconds: float  # nothing computes, for any reason but the host's launches
    idle_seconds: float
    host_seconds: float
    host_waits: int  # for the GPU
    peak_bytes: int

    @property
    def exposed_share(self) -> float:
        return self.exposed_seconds / self.seconds


def ran_out(error: OutOfMemory) -> Found:
    return Found(math.inf, 0, 0, 0, 0, error.nbytes)


# --- ranks that do the same -----------------------------------------------------------------------


def units_of(net: GPT) -> list[torch.nn.Module]:
    return [net.embedding, *net.blocks, net.head]


def unit_of_each(net, optimizer_cls, **settings):
    """Stage 3 with the units that PyTorch's have in their race."""
    return shard(net, optimizer_cls, stage=3, units=units_of(net), prefetch=True, **settings)


def in_buckets(net, optimizer_cls, **settings):
    """Stages 1 and 2. A ring of more GPUs has more latency, which larger buckets pay less often:
    from 13 GPUs on they have 2 MiB for each GPU, as Megatron-LM's have a million elements."""
    nbytes = max(BUCKET_BYTES, dist.get_world_size() << 21)
    return shard(net, optimizer_cls, prefetch=True, bucket_bytes=nbytes, **settings)


def fully_shard(net, optimizer_cls, kept=lambda net: (), **settings):
    """FSDP2. The kept units stay whole from forward to backward."""
    from torch.distributed import fsdp

    for unit in units_of(net):
        fsdp.fully_shard(unit, reshard_after_forward=unit not in kept(net))
    fsdp.fully_shard(net)
    return net, optimizer_cls(net.parameters(), **settings)


def fsdp1(net, optimizer_cls, kept=False, **settings):
    """PyTorch's first FSDP, with a flat parameter for each unit. Original parameters need addresses
    if they are kept, which fake tensors have not. A limit of gathers makes the host wait, and
    changes no step here."""
    from torch.distributed import fsdp
    from torch.distributed.fsdp.wrap import CustomPolicy

    kinds = fsdp.ShardingStrategy
    model = fsdp.FullyShardedDataParallel(
        net,
        auto_wrap_policy=CustomPolicy({*units_of(net)}.__contains__),
        sharding_strategy=kinds.SHARD_GRAD_OP if kept else kinds.FULL_SHARD,
        use_orig_params=not kept,
        forward_prefetch=True,
        limit_all_gathers=False,
        device_id=torch.device("cpu"),
    )
    return model, optimizer_cls(model.parameters(), **settings)


def replicas(net, optimizer_cls, cls, fused, **options):
    model = cls(net, **options)
    return model, optimizer_cls(model.parameters(), fused=fused)


DDP, TUNED = data_parallelism.DistributedDataParallel, data_parallelism.TUNED
DTENSOR = tensor_parallelism.WAYS
OURS = "shardlab"
KEPT = {  # PyTorch's that keep whole parameters from forward to backward
    "ZeroRedundancyOptimizer": zero.WAYS[zero.REDUNDANCY[1]],
    "fully_shard, all kept": Way(fully_shard, dict(kept=units_of)),
    "FSDP1, all kept": Way(fsdp1, dict(kept=True)),
}
ALIKE: dict[str, tuple[Way, dict[str, Way], Callable]] = {  # this book's, and each of PyTorch's
    "data parallelism": (Way(replicas, dict(cls=DDP)), {"DDP": Way(replicas, TUNED)}, train_step),
    "ZeRO 1": (Way(in_buckets, dict(stage=1)), KEPT, train_step),
    "ZeRO 2": (Way(in_buckets, dict(stage=2)), KEPT, train_step),
    "ZeRO 3": (
        Way(unit_of_each),
        {
            "fully_shard": Way(fully_shard),
            "fully_shard, head kept": Way(fully_shard, dict(kept=lambda net: [net.head])),
            "FSDP1": Way(fsdp1),
        },
        train_step,
    ),
    "tensor parallelism": (
        Way(tensor_parallelism.split_by_plan, dict(chunks=CHUNKS)),
        {"DTensor": DTENSOR["PyTorch, DTensor"]},
        step_by,
    ),
    "sequence parallelism": (
        Way(tensor_parallelism.split_by_plan, dict(sequence=True, regather=True, chunks=CHUNKS)),
        {"DTensor": DTENSOR["PyTorch, DTensor, sequence"]},
        step_by,
    ),
}


class DeepSpeedHeads(Mix):
    """DeepSpeed's exchange of heads around the same kernel; tokens are in order."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        deepspeed_on_gloo()
        from deepspeed.sequence.layer import DistributedAttention

        def attend(*heads):
            q, k, v = (x.transpose(1, 2) for x in heads)
            return self.attend(q, k, v, range(q.shape[2])).transpose(1, 2)

        group = self.context.group or dist.group.WORLD
        exchanged = DistributedAttention(attend, group, scatter_idx=2, gather_idx=1)
        return exchanged(*(x.transpose(1, 2) for x in (q, k, v)), 0).transpose(1, 2)


DEEPSPEED = "DeepSpeed, heads"
MIXES = dict(long_sequences.WAYS)
if find_spec("deepspeed"):
    MIXES[DEEPSPEED] = Way(long_sequences.in_context, dict(mix=DeepSpeedHeads, zigzag=False))
SHARE_A_SEQUENCE = {  # this book's mix, and its peers
    "context parallelism, ring": (long_sequences.OWN_RING, [long_sequences.TORCH_RING]),
    "context parallelism, gathered": ("gathered", [long_sequences.TORCH_GATHERED]),
    "context parallelism, heads": ("Ulysses", [*long_sequences.TORCH_MIXES, DEEPSPEED]),
}
ALIKE |= {
    technique: (MIXES[mix], {name: MIXES[name] for name in peers if name in MIXES}, step_by)
    for technique, (mix, peers) in SHARE_A_SEQUENCE.items()
}

OUTLIVE = "ZeRO 1", "ZeRO 2", "ZeRO 3"


def step_of_alike(way: Way, step_of: Callable, outlives: bool, model: Model, gpus: int) -> Found:
    with virtual_gpus(gpus, GPU) as gpu:
        try:
            built = way.build(model.build(), torch.optim.AdamW, fused=True)
            return last_step(gpu, partial(step_of, *built, model.batch()), outlives)
        except OutOfMemory as error:
            return ran_out(error)


def last_step(gpu, train: Callable, outlives: bool = False, warm_up: int = 2) -> Found:
    """The last step; one whose messages travel under the next is two steps less one."""
    for _ in range(warm_up):  # PyTorch's first step has other buckets
        train()
    found = []
    for count in (1, 2) if outlives else (1,):
        gc.collect()  # the whole parameters of a model that was cut
        with gpu.step() as step:
            for _ in range(count):
                train()
        idle, host = step.idle_seconds(), step.idle_seconds("host")
        found.append((step.seconds, idle - host, idle, host, step.host_waits))
    less = found[0] if outlives else (0,) * len(found[0])
    return Found(*(last - first for last, first in zip(found[-1], less)), step.peak_bytes)


# --- stages of a pipeline -------------------------------------------------------------------------


SCHEDULES = {  # and PyTorch's class
    "GPipe": (schedules.gpipe, "ScheduleGPipe"),
    "1F1B": (schedules.one_f_one_b, "Schedule1F1B"),
    "interleaved 1F1B": (schedules.interleaved, "ScheduleInterleaved1F1B"),
    "zero-bubble H1": (schedules.zero_bubble_h1, "ScheduleInterleavedZeroBubble"),
}


def microbatches_of(ranks: int) -> int:
    return max(MICROBATCHES, ranks)


def cut_of(name: str, ranks: int, blocks: int) -> tuple[schedules.Schedule, list[int]]:
    """Each rank's actions, and each stage's layers: the embedding and the head are two more. The
    first stages have one block more where not all can have as many."""
    options = {}
    if name == "interleaved 1F1B":  # the fewest stages of a rank that cut the blocks evenly
        options = dict(stages_per_rank=3 if blocks % (2 * ranks) else 2)
    stages = ranks * options.get("stages_per_rank", 1)
    counts = [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    counts[0], counts[-1] = counts[0] + 1, counts[-1] + 1
    return SCHEDULES[name][0](ranks, microbatches_of(ranks), **options), counts


def stage_of_a_pipeline(name: str, peer: bool, model: Model, warm_up: int = 1) -> Found:
    with virtual_gpu(GPU) as gpu:
        count, kind = dist.get_world_size(), SCHEDULES[name][1]
        lists, counts = cut_of(name, count, model.sizes["layers"])
        net, tokens = model.build(), model.batch(microbatches_of(count) * TOKENS)
        layers = [net.embedding, *net.blocks, net.head]
        plan = plan_pipeline(layers, lists, tokens, counts)
        if peer:
            pipeline = TorchPipeline(layers, plan, next_token_loss, kind)
        else:
            pipeline = Pipeline(layers, plan, next_token_loss)
        del net, layers
        optimizer = torch.optim.AdamW(pipeline.parameters(), fused=True)
        return last_step(gpu, partial(step_by, pipeline.step, optimizer, tokens), warm_up=warm_up)


def of_all(stages: list[Found]) -> Found:
    *means, waits, peaks = zip(*stages)
    return Found(*map(mean, means), max(waits), max(peaks))


# --- real time ------------------------------------------------------------------------------------


TWELVE = Model(dict(**GPT_SIZES, layers=12), 2048)
TIMED = "data parallelism", "ZeRO 3", "tensor parallelism", "1F1B"
CORES, MOST_REAL_SECONDS = 2, 10.0


def cpu_of_a_stage(name: str) -> float:
    stage_of_a_pipeline(name, False, TWELVE, warm_up=0)
    return time.process_time()


def real_time(technique: str) -> Result:
    """A step of twelve layers on eight ranks, and all that comes before it but imports: time of the
    CPU, of which other load takes less than of the wall's; that of all ranks over the cores."""
    began, cpu = time.perf_counter(), time.process_time()
    stages = [0.0]
    if technique in SCHEDULES:
        with ranks(NODE, device="cpu", announce=False) as world:
            stages = world.run(cpu_of_a_stage, technique)
    else:
        way, _, step_of = ALIKE[technique]
        with virtual_gpus(NODE, GPU) as gpu:
            built = way.build(TWELVE.build(), torch.optim.AdamW, fused=True)
            with gpu.step():
                step_of(*built, TWELVE.batch())
    own = time.process_time() - cpu
    return Result(
        PART,
        f"{technique}, 12 layers, {NODE} GPUs: real time of a step on {CORES} cores",
        round(max(own, (own + sum(stages)) / CORES), 2),
        "s",
        MOST_REAL_SECONDS,
        f"the CPU's; {time.perf_counter() - began:.1f} s on the wall",
    )


# --- make bench -----------------------------------------------------------------------------------


class Race(NamedTuple):
    technique: str
    model: str
    gpus: int

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of PyTorch's."""
        if self.technique in ALIKE:
            return tuple(ALIKE[self.technique][1])
        return (SCHEDULES[self.technique][1],)

    def run(self) -> dict[str, Found]:
        """This book's step, and each of PyTorch's."""
        if self.technique in ALIKE:
            ours, peers, step_of = ALIKE[self.technique]
            of = step_of, self.technique in OUTLIVE, MODELS[self.model], self.gpus
            ways = {OURS: ours} | peers
            return {name: step_of_alike(way, *of) for name, way in ways.items()}
        with ranks(self.gpus, device="cpu", announce=False) as world:
            stage = partial(world.run, stage_of_a_pipeline, self.technique)
            model, names = MODELS[self.model], (OURS, *self.peers)
            return {name: of_all(stage(name != OURS, model)) for name in names}

    @property
    def possible(self) -> bool:
        """Two nodes have more ranks than a Llama has key-value heads, and more interleaved stages
        than a GPT has blocks."""
        sizes = MODELS[self.model].sizes
        if LONG == self.model or self.technique in SHARE_A_SEQUENCE:
            shared = self.technique in SHARE_A_SEQUENCE
            return shared and (self.model, self.gpus) == (LONG, NODE)
        if self.model == SMALL:
            return self.technique in ALIKE and self.gpus == NODE
        if self.gpus > 2 * NODE:
            return self.technique in OUTLIVE and self.model == "GPT 1.3B"
        if self.technique in CUTS_HEADS:
            return sizes.get("key_value_heads", sizes["heads"]) % self.gpus == 0
        return self.technique != "interleaved 1F1B" or 2 * self.gpus <= sizes["layers"]

    def rows(self, each: dict[str, Found]) -> Iterator[Row]:
        for implementation, found in each.items():
            case = dict(**self._asdict(), implementation=implementation)
            if found.seconds == math.inf:
                yield Row("virtual.out_of_memory", found.peak_bytes, "bytes", case)
                continue
            yield Row("virtual.step", found.seconds, "seconds", case)
            yield Row("virtual.exposed", found.exposed_seconds, "seconds", case)
            yield Row("virtual.idle", found.idle_seconds, "seconds", case)
            yield Row("virtual.host", found.host_seconds, "seconds", case)
            yield Row("virtual.host_waits", found.host_waits, "count", case)
            yield Row("virtual.peak", found.peak_bytes, "bytes", case)

    def result(self, each: dict[str, Found]) -> Result:
        ours = each[OURS]
        name = min((peer for peer in each if peer != OURS), key=lambda peer: each[peer].seconds)
        best = each[name]
        return Result(
            PART,
            f"{self.technique}, {self.model}, {self.gpus} GPUs: step, shardlab / the best of"
            f" PyTorch's, {name}",
            round(ours.seconds / best.seconds, 4),
            "x",
            MOST,
            f"waits {ours.exposed_share:.2%} of {1e3 * ours.seconds:.2f} ms and"
            f" {best.exposed_share:.2%} of {1e3 * best.seconds:.2f} ms; peaks"
            f" {ours.peak_bytes / 1e9:.2f} and {best.peak_bytes / 1e9:.2f} GB",
        )


CUTS_HEADS = "tensor parallelism", "sequence parallelism"
TECHNIQUES = (*ALIKE, *SCHEDULES)


def all_races() -> list[Race]:
    races = [Race(*one) for one in product(TECHNIQUES, MODELS, GPUS)]
    return [race for race in races if race.possible]


def measure_virtual(
    races: Sequence[Race] | None = None, timed: Sequence[str] = TIMED
) -> list[Result]:
    timed = [real_time(technique) for technique in timed]
    return [*timed, *(race.result(race.run()) for race in races or all_races())]


def recorded(rows: Iterable[Row], folder: Path, part: str = "virtual") -> None:
    """Write the rows into the recording of this day."""
    versions = dict(python=platform.python_version())
    versions |= {name: version(name) for name in ("torch", "shardlab")}
    command = f"python -m bench.{part} measured"
    made = Recording(HARDWARE, versions, str(date.today()), command, tuple(rows))
    path = folder / made.file_name
    (made.after(read_recording(path)) if path.exists() else made).write(folder)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.virtual", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("techniques", nargs="*", metavar="TECHNIQUE", help=", ".join(TECHNIQUES))
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--gpus", type=int)
    given = parser.parse_args(arguments)
    for race in all_races():
        asked = given.techniques or TECHNIQUES, [given.model or race.model]
        if (
            race.technique in asked[0]
            and race.model in asked[1]
            and given.gpus in (None, race.gpus)
        ):
            found = race.run()
            print(race.result(found).what, race.result(found).value, flush=True)
            print(" ", race.result(found).note, flush=True)
            recorded(race.rows(found), given.folder)


if __name__ == "__main__":
    from bench import virtual

    virtual.main()
