"""Formulas of chapter 13 beside counted bytes: of tiles, of PyTorch's operators, of what backward
keeps."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from shipped import launch_of
from solved import Given, value
from torch.autograd.graph import saved_tensors_hooks

from shardlab.kernels.losses import chunked_cross_entropy, cut_cross_entropy
from shardlab.kernels.moved_bytes import moved_bytes
from shardlab.kernels.tiles import run


def by_hand(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 128)])
@pytest.mark.parametrize(
    "chain, operations, operands",
    [
        (lambda x: torch.relu(x + 1) * 0.5, 3, 0),
        (lambda x: torch.relu(x + 1) * 0.5 + x, 4, 1),
        (by_hand, 9, 4),
        (torch.relu, 1, 0),
    ],
)
def test_bytes_of_chains(chain, operations, operands, shape):
    """Must catch: results alone; each operand once for the whole chain; a number as an operand."""
    x = torch.randn(shape)
    given = dict(operation_rows=shape[0], operation_columns=shape[1], operation_element_bytes=4)
    given |= dict(operation_depth=operations, chain_operands=operands)
    moved = moved_bytes(chain, x)
    assert value("chain_bytes", **given) == moved.total
    assert len(moved.calls) == operations
    fused = moved_bytes(F.gelu, x).total
    assert value("fused_chain_bytes", **given) == fused
    assert value("fused_share", **given) == fused / moved.total


FORMULAS = {
    "add": "vector_add_bytes",
    "softmax": "softmax_bytes",
    "softmax backward": "softmax_backward_bytes",
    "rms norm": "rms_norm_bytes",
    "rms norm backward": "rms_norm_backward_bytes",
    "cross-entropy": "cross_entropy_bytes",
    "cross-entropy backward": "cross_entropy_backward_bytes",
}


def counted(name, **options):
    launch = launch_of(name, **options)
    moved = run(launch.kernel, launch.grid, *launch.arguments, **launch.constants)
    return moved.read, moved.written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tile", [4, 16, 128])
@pytest.mark.parametrize("name", FORMULAS)
def test_bytes_of_row_kernels(name, tile, dtype):
    """Must catch: elements of a block that are masked out; a weight that is read once in all;
    numbers of a row that each block reads, counted once."""
    for rows, columns in ((5, 77), (1, 1), (16, 64)):
        given = dict(operation_rows=rows, operation_columns=columns, kernel_block=tile)
        given |= dict(operation_element_bytes=dtype.itemsize, row_programs=min(tile, rows))
        options = dict(tile=tile, dtype=dtype, rows=rows, columns=columns, pads=False)
        assert sum(counted(name, **options)) == value(FORMULAS[name], **given)


TILES = [(16, 16), (32, 16), (16, 64), (64, 32)]
SHAPES = [(1, 2, 2, 64, 16), (2, 4, 2, 70, 20), (1, 1, 1, 1, 1), (1, 3, 1, 33, 8)]


def sizes_of(shape, tile, dtype, causal):
    names = ("microbatch", "heads", "key_value_heads", "sequence", "head_columns")
    return dict(zip(names, shape)) | dict(
        tile_rows=tile[0], tile_columns=tile[1], operation_element_bytes=dtype.itemsize,
        causal=int(causal),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes_of_attention(shape, tile, causal, dtype):
    """Must catch: a last tile that is not full, counted as one; keys after the diagonal; a tile
    wider than high, which reads beyond the diagonal; queries that share a key, backward."""
    given = sizes_of(shape, tile, dtype, causal)
    ends, options = ", causal" if causal else "", dict(tile=tile, dtype=dtype, sizes=shape)
    read, written = counted("attention" + ends, **options)
    found = Given(**given)
    assert found.attention_read_bytes == read
    assert found.attention_written_bytes == written
    assert found.attention_moved_bytes == read + written
    backward = sum(counted("attention backward" + ends, **options))
    assert found.attention_backward_moved_bytes == backward


@pytest.mark.parametrize("shape", [(1, 2, 16, 8), (2, 3, 33, 20)])
def test_bytes_of_plain_attention(shape):
    """Must catch: scores that are written and not read; a product that reads them."""

    def plain(q, k, v):
        return torch.softmax((q @ k.transpose(-2, -1)) * shape[-1] ** -0.5, -1) @ v

    given = dict(zip(("microbatch", "heads", "sequence", "head_columns"), shape))
    given["operation_element_bytes"] = 4
    tensors = [torch.randn(shape) for _ in range(3)]
    assert value("scores_moved_bytes", **given) == moved_bytes(plain, *tensors).total
    del given["head_columns"]
    scores = tensors[0] @ tensors[1].transpose(-2, -1)
    assert value("stored_scores_bytes", **given) == scores.nbytes


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_what_a_tile_holds(tile, causal, monkeypatch):
    """Tiles are the kernel's own variables when it ends, operations those of its products.

    Must catch: values left out; scores in 16 bits; operations of unmasked places alone."""
    shape, sizes, flops = (1, 2, 2, 128, 32), set(), []

    def watch(frame, event, result):
        if event == "return" and frame.f_code.co_name == "attention_kernel":
            held = [frame.f_locals[name] for name in ("q_tile", "k_tile", "v_tile", "scores")]
            sizes.add(sum(tile.nbytes for tile in held))

    launch = launch_of("attention" + ", causal" * causal, tile=tile, sizes=shape)
    language = sys.modules["shardlab.kernels.tiles"].tl
    product = language.dot

    def counts(a, b, **options):
        flops.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        return product(a, b, **options)

    monkeypatch.setattr(language, "dot", staticmethod(counts))
    before = sys.getprofile()
    sys.setprofile(watch)
    run(launch.kernel, launch.grid, *launch.arguments, **launch.constants)
    sys.setprofile(before)
    given = sizes_of(shape, tile, torch.float32, causal)
    assert {value("tile_bytes", **given)} == sizes
    assert value("attention_tile_flops", **given) == sum(flops)


def test_the_slower_of_two():
    """Must catch: a sum of both times; the smaller one."""
    given = sizes_of((1, 2, 2, 64, 16), (16, 16), torch.float32, True)
    bytes_, flops = (value(f"attention_{name}", **given) for name in ("moved_bytes", "tile_flops"))
    for bandwidth, rate in ((1e9, 1e15), (1e15, 1e9)):
        rates = dict(memory_bytes_per_second=bandwidth, flops_per_second=rate)
        found = value("attention_kernel_seconds", **given, **rates)
        assert found == pytest.approx(max(bytes_ / bandwidth, flops / rate))


def kept(loss, *inputs):
    """Bytes that backward keeps, each storage once, without the function's inputs."""
    storages, known = {}, {t.untyped_storage().data_ptr() for t in inputs}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and tensor.dim() and storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(*inputs)
    return sum(storages.values()), result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "tokens, words, chunk, part", [(12, 33, 5, 8), (8, 16, 8, 16), (3, 9, 64, 64)]
)
def test_bytes_of_losses(tokens, words, chunk, part, dtype):
    """Must catch: logits that are kept; a chunk larger than all tokens; a gradient kept in fp32."""
    hidden = torch.randn(tokens, 6).to(dtype).requires_grad_()
    weight = torch.randn(words, 6).to(dtype).requires_grad_()
    targets = torch.randint(0, words, (tokens,))
    given = dict(microbatch=1, sequence=tokens, vocabulary=words, hidden=6)
    given |= dict(operation_element_bytes=dtype.itemsize, loss_chunk_tokens=chunk)
    given |= dict(loss_chunk_words=part, loss_logit_bytes=12)

    def eager(hidden, weight):
        return F.cross_entropy((hidden @ weight.T).float(), targets)

    ways = {
        "eager": eager,
        "chunked": lambda h, w: chunked_cross_entropy(h, w, targets, chunk),
        "cut": lambda h, w: cut_cross_entropy(h, w, targets, chunk, part),
    }
    for name, way in ways.items():
        assert kept(way, hidden, weight)[0] == value(f"{name}_loss_kept_bytes", **given)
        if name == "eager":
            continue
        logits = value(f"{name}_logits_bytes", **given)
        moved = moved_bytes(lambda way=way: way(hidden, weight).backward())
        assert max(call.written for call in moved.calls if call.name == "exp_") == logits


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_steps_of_optimizers(mode, count):
    """Must catch: operators of a loop without foreach's one call; a fused step that reads each
    tensor again, or writes gradients, which it does where it unscales them alone."""
    parameters = [torch.nn.Parameter(torch.randn(5, number + 1)) for number in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=mode == 1, fused=mode == 2)
    optimizer.step()
    moved = moved_bytes(optimizer.step)
    given = dict(optimizer_mode=mode, optimizer_tensors=count)
    given["parameters"] = sum(parameter.numel() for parameter in parameters)
    assert value("optimizer_calls", **given) == len(moved.calls)
    assert value("optimizer_moved_bytes", **given) == moved.total
    if mode == 2:
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())
        unscaled = moved_bytes(optimizer.step).calls[1].written - moved.calls[1].written
        assert unscaled == 4 * given["parameters"]
