"""Data, pipeline and tensor parallelism with sequence parallelism at once, on 8 ranks: a table of
layouts that compositions.py trains beside the plain model."""

import sys

import cloudpickle
import compositions
import pytest
import torch

from shardlab.pipelines.schedules import Kind

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(compositions)


# of row layers whose messages overlap; zero bubble puts off the products of such layers
CHUNKS = {"GPipe": 3, "1F1B": 0, "interleaved 1F1B": 1, "zero-bubble H1": 2}


def layout_of(kind):
    axes = dict(pp=2, tp=2, sequence_parallel=kind != "GPipe", schedule=kind, microbatches=4)
    axes["chunks"] = CHUNKS[kind]
    case = compositions.layout(2, 0, **axes, clip=0)
    return case._replace(sizes={**case.sizes, "layers": 4, "tied_head": 1})


def products_put_off(kind):
    """On a rank: how many products an I has left to its W."""
    torch.set_num_threads(1)
    run = compositions.Run(layout_of(kind), 2, 0)
    pipeline, found = run.net, [0]
    make_input_gradient = pipeline.methods[Kind.INPUT]

    def noted(action):
        make_input_gradient(action)
        found.append(len(pipeline.put_off[action.stage, action.microbatch]))

    pipeline.methods[Kind.INPUT] = noted
    run.step(compositions.batches(run.case)[0])
    return found[-1]


@pytest.mark.parametrize("kind", CHUNKS)
def test_dp_pp_tp_and_sequence_parallel(worlds, kind):
    """Steps of a GPT with a tied head. Zero bubble puts off all that the ranks have parts of: four
    linear layers of each block, the biases of two, and the head.

    Must catch: gradients of a microbatch averaged before the last; a tied weight of which each tp
    rank has a part that is added to another part; messages of whole sequences between stages; I
    that does the whole backward of a layer cut by columns or rows; an overlapped layer that asks
    for the autocast of the meta device, on which the stages are planned."""
    assert compositions.parity_in(worlds(8), layout_of(kind)) == "parity"
    first, last = (12, 13) if kind == "zero-bubble H1" else (0, 0)
    assert worlds(8).run(products_put_off, kind) == [first, first, last, last] * 2
