"""The last part: which layout. What readers write is compared with a planner's own numbers; nothing
runs on ranks but what the lab starts."""

from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import plain_numbers

topic = Topic(__name__)

# --- copies, and their microbatches ---------------------------------------------------------------


def _pair(solution, **case):
    """(copies, microbatches), as whole numbers where they are."""
    found = solution(**case)
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return tuple(round(one, 6) for one in plain_numbers(found))
    return found


copies_and_their_microbatches = topic.exercise(
    "copies_and_their_microbatches",
    cases=(
        dict(gpus=8192, tensor=8, pipeline=16, batch=4096, microbatch=2),
        dict(gpus=64, tensor=4, pipeline=2, batch=512, microbatch=4),
        dict(gpus=24, tensor=2, pipeline=3, batch=120, microbatch=5),
    ),
    words=(
        "8,192 GPUs, t = 8, p = 16, a batch of 4,096, microbatches of 2",
        "64 GPUs, t = 4, p = 2, a batch of 512, microbatches of 4",
        "24 GPUs, t = 2, p = 3, a batch of 120, microbatches of 5",
    ),
    answer=_pair,
    hint="How many GPUs hold one copy of the model? What one copy sees of the batch is cut into"
    " microbatches.",
    right="t x p GPUs hold a copy, and each copy cuts its share of the batch.",
)


# --- the time of a gather -------------------------------------------------------------------------


def _microseconds(solution, **case):
    found = plain_numbers(solution(**case))
    return round(1e6 * found, 3) if isinstance(found, (int, float)) else found


def _what_the_ring_has(found, right, parameters, tensor, copies, node, card):
    """Cards, bytes and parts that were forgotten, one at a time."""
    if not isinstance(found, (int, float)) or right == 0:
        return None
    cards = max(1, node // tensor)
    told = {
        cards: "each rank of a ring has a card in its node: node // tensor of them share the work,"
        " at least one.",
        cards / node: "tensor-parallel ranks gather at the same time, each over its own cards:"
        " a ring has node // tensor cards, not all of the node's.",
        tensor: "a rank has the layers cut by tensor parallelism: it gathers parameters / tensor.",
        1 / 2: "those are elements: a parameter takes 2 bytes in bf16.",
        2: "parameters are gathered in bf16, of 2 bytes: 4 are those of fp32.",
        copies / (copies - 1): "one of the copies' shards is the rank's own: (copies - 1) / copies"
        " of the bytes arrive.",
        copies - 1: "each of the others sends its shard, and a shard is 1 / copies of the bytes.",
        1 / copies: "that is one shard, and all other ranks' shards arrive.",
    }
    return next(
        (
            said
            for times, said in told.items()
            if times != 1 and abs(found / right / times - 1) < 1e-6
        ),
        None,
    )


seconds_of_a_gather = topic.exercise(
    "seconds_of_a_gather",
    cases=(
        dict(parameters=70e9, tensor=4, copies=16, node=8, card=40e9),
        dict(parameters=70e9, tensor=8, copies=8, node=8, card=40e9),
        dict(parameters=8e9, tensor=1, copies=64, node=4, card=10e9),
    ),
    words=(
        "70 billion parameters, t = 4, 16 copies, nodes of 8, cards of 40 GB/s",
        "70 billion parameters, t = 8, 8 copies, nodes of 8, cards of 40 GB/s",
        "8 billion parameters, t = 1, 64 copies, nodes of 4, cards of 10 GB/s",
    ),
    answer=_microseconds,
    hint="Bytes over bytes per second. What does a rank still need of its part of the model? And"
    " how many ranks of one ring are in a node, each with a network card?",
    properties=(_what_the_ring_has,),
    right="bytes of a rank's part, less its own shard, over the cards of its ring.",
)


# --- bug hunt: a planner that looks away ----------------------------------------------------------

_GB = 10**9
_LAYOUTS = [  # name, bytes of each pipeline rank, seconds
    ("A", [60 * _GB, 78 * _GB], 10.0),
    ("B", [70 * _GB, 55 * _GB], 12.0),
    ("C", [40 * _GB, 40 * _GB], 14.0),
    ("D", [79 * _GB, 20 * _GB], 9.0),
    ("E", [50 * _GB, 50 * _GB], 16.0),
]


def _chosen(solution, layouts, card_bytes):
    return solution(list(layouts), card_bytes)


planner_of_the_first_rank = topic.exercise(
    "planner_of_the_first_rank",
    cases=(
        dict(layouts=_LAYOUTS[:3], card_bytes=76 * _GB),
        dict(layouts=_LAYOUTS[2:4], card_bytes=80 * _GB),
        dict(layouts=[*_LAYOUTS[1:3], _LAYOUTS[0]], card_bytes=80 * _GB),
        dict(layouts=[*_LAYOUTS[1:3], _LAYOUTS[4]], card_bytes=80 * _GB),
    ),
    words=(
        "three layouts on cards of 76 GB",
        "two layouts on cards of 80 GB",
        "three layouts on cards of 80 GB",
        "three other layouts on cards of 80 GB",
    ),
    answer=_chosen,
    hint="Of a pipeline of two ranks, which one has the head and the loss? What does the planner"
    " know of that rank?",
    right="the fullest rank decides, whichever it is.",
)


# --- task: four ranks of the reader's own ---------------------------------------------------------


def _list_of_parameters(given):
    """The numbers that were found, or a sentence about their form."""
    found = given()
    if found is None or found is ...:
        return found
    if not isinstance(found, (list, tuple)):
        return "one number is one rank's: run(function) gives a list, and check wants the list."
    if not all(isinstance(one, int) for one in found):
        return "whole numbers are wanted: each rank counts the parameters of its pipeline."
    return list(found)


parameters_of_four_ranks = topic.exercise(
    "parameters_of_four_ranks",
    [62_656, 62_656, 58_688, 58_688],
    name="found",
    cases=({},),
    answer=_list_of_parameters,
    of_a_value=True,
    hint="The function of eight ranks without zero.shard and without a ledger: a Mesh of two axes,"
    " the cut, the pipeline. Then ranks(4), run, and the numel() of pipeline.parameters().",
    right="four ranks of your own: neighbours share layers, and each pair has its stage.",
)
