"""Saving and resuming: the same run afterwards, on as many ranks and on others, in another stage;
and every way in which a save can go wrong. The runs that are killed are in
test_saving_faults.py."""

import os
import random
import resource
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from night import at_night
from refusals import said_by
from told import told
from torch import nn

from coursekit.formulas import RECIPES, checkpoint_bytes
from coursekit.topics.zero.fast_ring import FastRing
from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.mixed_precision.hardened.master_weights import MasterWeights
from shardlab.saving import checkpoint as saving
from shardlab.saving import durable
from shardlab.saving.checkpoint import Damaged, SaveFailed, resume, save
from shardlab.zero.hardened import stage1, stage2, stage3
from shardlab.zero.hardened.flat import Native
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.offload import cpu_offload


class Network(nn.Module):
    """Odd sizes, a shard without elements on three ranks, a frozen layer, a tied weight, a buffer
    that changes."""

    def __init__(self, width=7):
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 1)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.scale = nn.Linear(1, 2, bias=False)
        self.again = nn.Linear(1, 2)
        self.again.weight = self.scale.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        x = self.last(self.frozen(torch.tanh(self.first(x))))
        return self.scale(x) + self.again(x)


def training(
    stage,
    seed=0,
    rule=torch.optim.AdamW,
    groups=None,
    dtype=torch.float64,
    width=7,
    collectives=None,
    **settings,
):
    """(model, optimizer, scheduler); stage 0 is a plain model, on which all ranks do the same.
    Weight decay is chosen by layer or, after sharding, by dims."""
    torch.manual_seed(seed)
    model = Network(width).to(dtype)
    if stage == 3:
        stage3.fully_shard(model, [model.first, model.frozen, model.last])
    parts = list(model.parameters())
    if groups == "by layer":
        others = [*model.last.parameters(), *model.scale.parameters(), model.again.bias]
        parts = [dict(params=list(model.first.parameters())), dict(params=others, weight_decay=0.0)]
    elif groups == "by dims":
        trained = [p for p in parts if p.requires_grad]
        parts = [
            dict(params=[p for p in trained if p.dim() >= 2], weight_decay=0.3),
            dict(params=[p for p in trained if p.dim() < 2], weight_decay=0.0),
        ]
    if stage in (0, 3):
        optimizer = rule(parts, lr=0.1, **settings)
    else:
        settings |= dict(bucket_bytes=300, collectives=collectives, lr=0.1)
        if groups:  # the door takes all parameters with the same settings
            kind = (stage1, stage2)[stage - 1].ShardedOptimizer
            optimizer = kind(parts, rule, **settings)
        else:
            _, optimizer = zero.shard(model, rule, stage=stage, **settings)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def steps(model, optimizer, scheduler, begin, end):
    """The losses of all ranks together: the batch of a step is the same however many share it."""
    n, me, losses = dist.get_world_size(), dist.get_rank(), []
    for step in range(begin, end):
        chance = torch.Generator().manual_seed(step)
        x = torch.randn(6, 5, generator=chance, dtype=model.first.bias.dtype)
        x = x[6 * me // n : 6 * (me + 1) // n]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if not hasattr(optimizer, "buckets") and not stage3.sharded_units(model):
            for p in model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= n
        optimizer.step()
        scheduler.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / n)
    return losses


def run_and_save(stage, folder, at=(2, 4), end=6, **options):
    """The losses of a run that saves on its way."""
    model, optimizer, scheduler = training(stage, **options)
    losses, begin = [], 0
    for step in (*at, end):
        losses += steps(model, optimizer, scheduler, begin, step)
        begin = step
        if step != end:
            save(folder, model, optimizer, step, extra=dict(scheduler=scheduler.state_dict()))
    return losses


def run_on(stage, folder, end=6, **options):
    """(step resumed at, losses from there, what the buffer has)."""
    model, optimizer, scheduler = training(stage, seed=9, **options)
    saved = resume(folder, model, optimizer)
    scheduler.load_state_dict(saved.extra["scheduler"])
    return saved.step, steps(model, optimizer, scheduler, saved.step, end), model.seen.item()


def go_on(folder, stage, options, seed):
    """Make two steps and save, or resume and save that; then two more steps. (weights that were
    saved, weights at the end.) All ranks have the same batch. `stage` is None for a plain model, 0
    for replicas of it."""
    model, optimizer, _ = training(stage or 0, seed, **options)
    called = DistributedDataParallel(model) if stage == 0 else model

    def weights():
        with unsharded(model):
            return [p.detach().clone() for p in model.parameters()]

    def step(number):
        draw = torch.Generator().manual_seed(number)
        optimizer.zero_grad()
        x = torch.randn(4, 5, generator=draw, dtype=torch.float64).to(model.first.bias.dtype)
        called(x).square().mean().backward()
        optimizer.step()

    saved = resume(folder, called, optimizer)
    for number in () if saved else (0, 1):
        step(number)
    save(folder, called, optimizer, saved.step + 1 if saved else 2)
    kept = weights()
    for number in (2, 3):
        step(number)
    return kept, weights()


NATIVE = dict(collectives=Native())
PARTS = dict(collectives=FastRing(small_bytes=8, piece_bytes=40))
DIMS = dict(groups="by dims")
HOSTED = dict(rule=cpu_offload(torch.optim.AdamW))
MASTERS = dict(rule=MasterWeights, of=torch.optim.AdamW, dtype=torch.bfloat16, **DIMS)
HOSTED_MASTERS = {**MASTERS, "rule": cpu_offload(MasterWeights)}


def one_frozen(groups, **settings):
    groups[1]["params"][0].requires_grad_(False)
    return torch.optim.AdamW(groups, **settings)


def others_left_out(groups, **settings):
    return torch.optim.AdamW(groups[0]["params"][:1], **settings)


def amsgrad_for_matrices(groups, **settings):
    groups[0]["amsgrad"] = True
    return torch.optim.AdamW(groups, **settings)


# states that differ within a unit of stage 3, or are not there
APART = [DIMS | dict(rule=rule) for rule in (one_frozen, others_left_out, amsgrad_for_matrices)]


def any_layouts(options, seed):
    """Stages that are drawn, on two ranks, three and one."""
    chance = random.Random(f"{len(options)} {seed}")
    return [(chance.choice((None, 0, 1, 2, 3)), n, options) for n in (2, 3, 1)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "layouts",
    [
        any_layouts(MASTERS, 0),
        # (stage, ranks, options); a bucket's shard has many parts, or one
        ((1, 3, PARTS), (1, 2, {})),
        ((2, 3, PARTS), (3, 2, {})),
        # zeros behind the parameters of a bucket, or none
        ((1, 3, NATIVE), (2, 2, {})),
        # or of a unit
        ((3, 2, NATIVE), (1, 3, NATIVE)),
        ((3, 3, NATIVE), (None, 2, {})),
        # masters, and parameters, that are on the host
        (
            (1, 2, HOSTED_MASTERS),
            (0, 2, HOSTED_MASTERS),
            (2, 2, MASTERS),
            (None, 2, HOSTED_MASTERS),
        ),
        # other flat tensors, or none
        ((None, 3, {}), (1, 2, {})),
        ((3, 3, {}), (2, 2, {})),
        # in stage 3 parameters of both groups travel in one flat tensor
        ((None, 3, DIMS), (3, 2, DIMS)),
        ((3, 3, DIMS), (1, 2, DIMS)),
        # states, and the parameters that are updated, lie on the host
        ((1, 2, HOSTED), (1, 2, HOSTED)),
        ((1, 2, HOSTED), (1, 2, {})),
        any_layouts(DIMS, 0),
        *(((3, 2, apart), (3, 3, apart), (None, 2, apart)) for apart in APART),
        *at_night(
            [(1, 2, {}), (1, 3, PARTS)],
            [(3, 2, {}), (1, 3, PARTS)],
            [(1, 3, NATIVE), (1, 3, NATIVE)],
            [(1, 2, {}), (1, 3, NATIVE)],
            [(2, 3, NATIVE), (3, 2, {})],
            [(3, 3, NATIVE), (3, 2, NATIVE)],
            *(any_layouts(options, seed) for options in (MASTERS, DIMS) for seed in (1, 2, 3)),
        ),
    ],
    ids=lambda layouts: " ".join(f"{stage} on {n}" for stage, n, _ in layouts),
)
def test_from_layout_to_layout(layouts, worlds, tmp_path):
    """Must catch: states of the first part alone saved; parts, or parameters, brought back in
    another order; one step counter for all flat tensors; zeros behind them not counted; the
    states of a plain model not saved; the host's copies not
    refreshed, so that the first step undoes the resuming; masters that begin anew from rounded
    weights, or are not found beside a model without shards; "module." in a file; decay of another
    group; the states of a unit's first parameter taken for all."""
    want = None
    for number, (stage, n, options) in enumerate(layouts):
        in_16_bits = "of" in options
        for kept, end in worlds(n).run(go_on, str(tmp_path), stage, options, number):
            want = want or (kept, end)
            compared = zip(want[0] + want[1], kept + end)
            if in_16_bits and n == 3:  # where the mean of three is rounded
                compared = zip(want[0], kept)
            close = 0 if in_16_bits else 1e-12
            assert all(torch.allclose(*both, rtol=0, atol=close) for both in compared), (stage, n)


# --- what cannot be written -----------------------------------------------------------------------


def limit_files(nbytes):
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))


def full_disk(folder, guilty, phase):
    """From the phase on no file of the guilty rank may grow; then there is room again."""
    model, optimizer, scheduler = training(3)
    steps(model, optimizer, scheduler, 0, 5)
    whole = saving.run_together
    phases = iter(("look", "begin", "write_own", "write_rest", "finish"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]

    def together(*args, **kwargs):
        if next(phases) == phase and dist.get_rank() == guilty:
            limit_files(200)
        return whole(*args, **kwargs)

    saving.run_together, said = together, None
    try:
        save(folder, model, optimizer, 5)
    except SaveFailed as failed:
        said = str(failed)
    finally:
        saving.run_together = whole
        if dist.get_rank() == guilty:
            limit_files(before)
    dist.barrier()
    found = sorted(os.listdir(folder))
    dist.barrier()
    save(folder, model, optimizer, 5)
    return said, found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "guilty, phase",
    [(1, "write_own"), (0, "write_rest"), (0, "finish"), *at_night((0, "write_own"))],
)
def test_full_disk(guilty, phase, two, tmp_path):
    """Mutations: the other rank goes on, and waits forever or calls the save whole; leftovers in
    the way of the next save."""
    whole = two.run(run_and_save, 3, str(tmp_path), (4,))[0]
    for said, found in two.run(full_disk, str(tmp_path), guilty, phase, limit_seconds=600):
        assert said == f"rank {guilty} could not write to {tmp_path}: File too large."
        assert found == ["step-4"]  # nothing holds room that the disk lacks
    assert sorted(os.listdir(tmp_path)) == ["step-4", "step-5"]
    (tmp_path / "step-5").rename(tmp_path / "aside")
    assert two.run(run_on, 3, str(tmp_path))[0][:2] == (4, whole[4:])


def refused(stage, folder, what=resume, user=None, **options):
    """The sentence of a rank that could not resume or save. Nothing may have changed."""
    model, optimizer, _ = training(stage, **options)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        if user is not None:
            os.seteuid(user)
        what(folder, model, optimizer)
    except (Damaged, SaveFailed, ValueError) as error:
        assert all(map(torch.equal, before, model.parameters())) and not optimizer.state
        return f"{type(error).__name__}: {error}"
    finally:
        if user is not None:
            os.seteuid(0)


def test_no_permission(two, tmp_path):
    """Mutations: a collective among what rank 0 does first, so that it waits for ranks that wait
    for it; a folder that may not be read taken for an empty one, so that a month of training begins
    anew."""
    (tmp_path / "file").write_text("no folder")
    asked = 2, str(tmp_path / "file" / "saves"), partial(save, step=1)
    for said in two.run(refused, *asked, limit_seconds=600):
        assert said == f"SaveFailed: rank 0 could not write to {asked[1]}: Not a directory."
    two.run(run_and_save, 2, str(tmp_path / "saves"), (4,))
    nobody = 65534 if os.geteuid() == 0 else None  # root may do everything
    for mode, what, failed in (
        (0o555, partial(save, step=5), "SaveFailed: rank 0 could not write to"),
        (0o000, resume, "Damaged: rank 0 could not read"),
    ):
        for folder in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
            folder.chmod(folder.stat().st_mode | 0o055)
        (tmp_path / "saves").chmod(mode)
        try:
            found = two.run(refused, 2, str(tmp_path / "saves"), what, nobody, limit_seconds=600)
        finally:
            (tmp_path / "saves").chmod(0o755)
        said = f"{failed} {tmp_path / 'saves'}: Permission denied."
        assert all(sentence.startswith(said) for sentence in found), found


def unreadable_extra(folder):
    import numpy

    model, optimizer, _ = training(1)
    said = []
    for extra in (dict(best=numpy.float64(3.0)), dict(look=lambda: 0)):
        try:
            save(folder, model, optimizer, 1, extra=extra if dist.get_rank() == 0 else None)
        except (ValueError, SaveFailed) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said, resume(folder, model, optimizer)


def test_what_could_not_be_read_again(two, tmp_path):
    """A NumPy number, which torch refuses later, and a function. Mutations: the file not read back;
    only OSError caught, so that one rank raises and the other waits."""
    for (number, function), nothing in two.run(unreadable_extra, str(tmp_path), limit_seconds=600):
        assert number.startswith(
            "ValueError: extra has something that is only read from a file one trusts: give numbers"
        )
        assert (
            function.startswith(f"SaveFailed: rank 0 could not write to {tmp_path}: ")
            and "pickle" in function
        )
        assert nothing is None


def in_the_way(folder):
    """Another run writes a shard into the same folder before this one does; then it takes one
    away."""
    model, optimizer, _ = training(1)
    said = []

    def theirs():
        (partial,) = (name for name in os.listdir(folder) if "partial" in name)
        return f"{folder}/{partial}/rank-1.pt"

    for name, rank, other in (
        ("own_parts", 1, lambda: open(theirs(), "w").close()),
        ("state_types", 0, lambda: os.remove(theirs())),
    ):
        ours, come = getattr(saving, name), [other]

        def both(*args, rank=rank, ours=ours, come=come):
            while come and dist.get_rank() == rank:
                come.pop()()
            return ours(*args)

        setattr(saving, name, both)
        try:
            save(folder, model, optimizer, 1)
        except SaveFailed as failed:
            said.append(str(failed))
        finally:
            setattr(saving, name, ours)
    save(folder, model, optimizer, 1)
    return said


def test_two_runs_save_there(two, tmp_path):
    """Mutations: files of another run opened to be written over; sizes not compared before the save
    gets its name."""
    for said in two.run(in_the_way, str(tmp_path), limit_seconds=600):
        assert said == [
            f"rank 1 could not write to {tmp_path}: File exists.",
            f"rank 0 could not write to {tmp_path}: No such file or directory.",
        ]
    assert two.run(refused, 1, str(tmp_path)) == [None, None]


# --- what cannot be resumed -----------------------------------------------------------------------


def flipped(content: bytes, number: int) -> bytes:
    """The content with one bit turned over."""
    content = bytearray(content)
    content[number // 8] ^= 1 << number % 8
    return bytes(content)


def flip(path, place):
    path.write_bytes(flipped(path.read_bytes(), 8 * place))


def test_every_flipped_bit(two, tmp_path):
    """Mutations: a checksum of the weights only, or of the size; the manifest without one of its
    own, or with the second name of a tied weight."""
    two.run(run_and_save, 3, str(tmp_path))
    place = tmp_path / "step-4"
    manifest = durable.read_json(place / "manifest.json")
    names = {name for name, _ in Network().named_parameters()} | {"seen", "the optimizer"}
    assert names == {*manifest["parts"][0]["contents"]}
    for name in ("rank-1.pt", "rest.pt"):
        path, (size, sha256) = place / name, manifest["files"][name]
        whole = path.read_bytes()
        durable.read(path, size, sha256)
        for number in range(0, 8 * len(whole), 1999):  # all eight bits, all regions
            path.write_bytes(flipped(whole, number))
            with pytest.raises(Damaged, match=f"step-4/{name} is damaged"):
                durable.read(path, size, sha256)
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(Damaged, match=f"step-4/{name} has .* bytes, .* were saved"):
                durable.read(path, size, sha256)
    path, whole = place / "manifest.json", (place / "manifest.json").read_bytes()
    for number in range(0, 8 * len(whole), 101):
        path.write_bytes(flipped(whole, number))
        with pytest.raises(Damaged):
            durable.read_json(path)


def test_a_damaged_save(two, tmp_path):
    """Mutations: the checksum not compared; compared after the first parameter was overwritten; the
    older save taken by itself; one rank that raises while the other waits."""
    whole = two.run(run_and_save, 3, str(tmp_path))[0]
    newest, older = tmp_path / "step-4", tmp_path / "step-2"
    middle = (newest / "rank-1.pt").stat().st_size // 2
    after = " Older saves: step-2; move step-4 away to take that."
    differs = "Damaged: step-4/{} is damaged: its SHA-256 differs from the one that was saved."
    differs += after

    def said():
        found = two.run(refused, 3, str(tmp_path), limit_seconds=600)
        assert found[0] == found[1]
        return found[0]

    flip(newest / "rank-1.pt", middle)
    assert said() == differs.format("rank-1.pt")
    flip(newest / "rank-1.pt", middle)
    assert said() is None
    good = (newest / "rank-1.pt").read_bytes()
    # as large, and as good, but of another step
    (newest / "rank-1.pt").write_bytes((older / "rank-1.pt").read_bytes())
    assert said() == differs.format("rank-1.pt")
    (newest / "rank-1.pt").unlink()
    assert said() == "Damaged: step-4/rank-1.pt is missing." + after
    (newest / "rank-1.pt").write_bytes(good)
    text = (newest / "manifest.json").read_text()
    (newest / "manifest.json").write_text(text.replace('"step": 4', '"step": 2'))
    assert said() == differs.format("manifest.json")
    (newest / "manifest.json").write_text((older / "manifest.json").read_text())
    assert said() == "Damaged: step-4/manifest.json is the one of step 2." + after
    (newest / "manifest.json").unlink()
    assert said().startswith("Damaged: step-4/manifest.json cannot be read: ")
    newest.rename(tmp_path / "damaged")
    assert two.run(run_on, 3, str(tmp_path))[0][:2] == (2, whole[2:])


def test_another_run(two, tmp_path):
    """Mutations: one of them not compared; the groups compared by their number only, or when the
    model has been overwritten."""
    two.run(run_and_save, 1, str(tmp_path), (4,), groups="by layer")
    first = "first.weight was torch.float64 [7, 5] in group 0"
    for options, said in (
        (dict(groups="by layer", width=8), f"{first}, now it is torch.float64 [8, 5] in group 0"),
        (
            dict(groups="by layer", dtype=torch.float32),
            f"{first}, now it is torch.float32 [7, 5] in group 0",
        ),
        (
            dict(),
            (
                "the optimizer was AdamW with 2 parameter groups, now it is AdamW with 1 parameter"
                " groups"
            ),
        ),
        (
            dict(groups="by layer", rule=torch.optim.Adam),
            "the optimizer was AdamW with 2 parameter groups, now it is Adam with 2",
        ),
    ):
        for sentence in two.run(refused, 1, str(tmp_path), **options):
            assert sentence.startswith(f"ValueError: step-4: {said}"), sentence
            assert sentence.endswith("Resume the model and the optimizer that were saved.")
    found = two.run(groups_exchanged, str(tmp_path))
    assert found[0].startswith(f"step-4: {first}, now it is torch.float64 [7, 5] in group 1")


def groups_exchanged(folder):
    model = Network().double()
    parts = [
        [*model.last.parameters(), *model.scale.parameters(), model.again.bias],
        list(model.first.parameters()),
    ]
    optimizer = stage1.ShardedOptimizer([dict(params=part) for part in parts], torch.optim.AdamW)
    return said_by(lambda: resume(folder, model, optimizer), ValueError)


def updated_apart(folder):
    """A plain model; only one layer of it is trained in the second step."""
    model, optimizer, scheduler = training(0)
    steps(model, optimizer, scheduler, 0, 1)
    optimizer.zero_grad()
    model.first(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    optimizer.step()
    save(folder, model, optimizer, 2)
    return refused(1, folder), refused(0, folder)


def test_one_step_counter_for_two(two, tmp_path):
    """Mutation: the first parameter's counter taken for all."""
    for apart, together in two.run(updated_apart, str(tmp_path)):
        assert (
            apart.startswith("ValueError: first.bias and others were not updated in the same steps")
            and together is None
        )


# stage, whose optimizer, step, options, the sentence
REFUSED = told("test_saving::test_bad_input", globals())


def bad_input(folder):
    model, optimizer, _ = training(2)
    nothing, found = resume(folder, model, optimizer), []
    save(folder, model, optimizer, 3)
    for stage, of_others, step, options, _ in REFUSED:
        model, optimizer, _ = training(stage)
        if of_others:
            optimizer = of_others(nn.Linear(2, 2).double().parameters())
        with unsharded(model) if stage == 3 else nullcontext():
            with pytest.raises(ValueError) as refusal:
                save(folder, model, optimizer, step, **options)
        found.append(str(refusal.value))
    return nothing, found


def test_bad_input(two, tmp_path):
    """Nothing to resume; a step saved twice, or before one that is there, as by a run that forgot
    to resume; nothing to keep; no step; an optimizer of another model; an unsharded model.
    Mutation: any check left out."""
    sentences = [sentence for *_, sentence in REFUSED]
    assert two.run(bad_input, str(tmp_path / "new")) == [(None, sentences)] * 2


# --- how large it is ------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", range(4))
def test_bytes_of_a_checkpoint(stage, two, three, tmp_path):
    """Mutations: what all ranks have whole written by each of them; a chunk saved with the whole
    tensor that it is a view of; gradients counted."""
    for world in (two, three):
        folder = tmp_path / f"{world.world_size}"
        world.run(run_and_save, stage, str(folder), (4,), dtype=torch.float32)
        files = sorted((folder / "step-4").glob("rank-*.pt"))
        saved = [
            tensor
            for path in files
            for chunk in torch.load(path, weights_only=True)["chunks"]
            for tensor in chunk.values()
        ]
        frozen = 4 * (7 * 7 + 7)  # which has no moments
        trained = (5 * 7 + 7) + (7 + 1) + 2 + 2
        formula = frozen + checkpoint_bytes(parameters=trained, **RECIPES["fp32 Adam"].quantities)
        assert (
            formula
            == sum(tensor.nbytes for tensor in saved)
            == sum(tensor.untyped_storage().nbytes() for tensor in saved)
        )
