"""Lab 5: its models and tokens, the formulas that messages must equal, its tables."""

import torch
import torch.distributed as dist

from coursekit.formulas import evaluate
from coursekit.lab import small_gpt
from coursekit.show.tables import Table
from ranklab.ranks import rank_device
from shardlab.gpt import GPTConfig, next_token_loss

SIZES = dict(layers=2, hidden=32, heads=2, vocabulary=64, max_sequence=16)
LARGER = dict(layers=6, hidden=256, heads=4, vocabulary=1000, max_sequence=128)


def loss_of(model, *parts):
    """The loss of two sequences of 16 tokens for each part, the same whenever the part is asked
    for. The task is to say each token again."""
    generators = [torch.Generator().manual_seed(part) for part in parts]
    each = [torch.randint(SIZES["vocabulary"], (2, 16), generator=one) for one in generators]
    tokens = torch.cat(each).to(rank_device())
    return next_token_loss(model(tokens), tokens)


def count_close(tensors, others):
    """How many pairs are alike within 1e-12: in float64, sums in another order are."""
    return sum((one - other).norm().item() < 1e-12 for one, other in zip(tensors, others))


def distance_from_rank_0(parameters):
    """For each tensor, how far the farthest copy of it is from rank 0's."""
    apart = []
    for own in (parameter.detach() for parameter in parameters):
        first = own.clone()
        dist.broadcast(first, 0)
        apart.append((own - first).norm())
    farthest = torch.stack(apart)
    dist.all_reduce(farthest, dist.ReduceOp.MAX)
    return farthest.tolist()


def by_rank(what, rows):
    heads = [f"rank {rank}" for rank, _ in enumerate(next(iter(rows.values())))]
    return Table([what, *heads], [[name, *numbers] for name, numbers in rows.items()])


def sent_beside_formulas(sent, bucket_bytes):
    """Way -> rank -> operation -> Total: ranks 0 and 1. AssertionError where a byte of a rank is
    not the formula's."""
    nbytes = [parameter.nbytes for parameter in small_gpt(torch.float64, **SIZES).parameters()]
    total, given = sum(nbytes), dict(data_parallel=len(sent["server"]), allow_unused=True)
    given |= dict(parameter_bytes=total, gradient_bytes=total, gradient_element_bytes=8)
    given |= dict(parameter_tensors=len(nbytes), bucket_bytes=bucket_bytes)
    names = ["reduced_bytes", "gradient_buckets_at_most"]
    reduced, most = evaluate(names, **given).values()
    wanted = dict.fromkeys(("each tensor", "buckets", "overlap"), reduced) | dict(yours=total)
    for way in wanted:
        assert all(own["all_reduce"].nbytes == wanted[way] for own in sent[way]), way
    names = ["server_messages", "server_sent_bytes", "server_received_bytes"]
    for rank, own in enumerate(sent["server"]):
        messages, to, received = evaluate(names, rank=rank, **given).values()
        assert (*own["send"][:2], own["recv"].nbytes) == (messages, to, received), rank
    print(f"formulas: {reduced:,} bytes, as counted; at most {most} buckets")
    ranks = [(way, rank, on[rank]) for way, on in sent.items() for rank in (0, 1)]
    rows = [[way, r, name, *own[name][:2]] for way, r, own in ranks for name in own]
    return Table(["", "rank", "operation", "messages", "bytes"], rows)


def given_to_explorer(trace, bucket_bytes):
    """The measured step and its model, to three digits."""
    backward = trace.last_gradient_seconds - trace.forward_seconds
    given = dict(forward_seconds=trace.forward_seconds, backward_seconds=backward)
    given = {name: float(f"{seconds:.3g}") for name, seconds in given.items()}
    measured = {"data_parallel_step_seconds": [(bucket_bytes, trace.whole_seconds)]}
    given |= dict(measured=measured, update_seconds=0, data_parallel=2, bucket_bytes=bucket_bytes)
    return given | GPTConfig(**LARGER).quantities() | dict(link="Ethernet, 1 Gbit/s")
