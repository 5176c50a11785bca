"""The last part: which layout. What readers write is compared with a planner's own numbers; nothing
runs on ranks but what the lab starts."""

from coursekit.exercises.answers import list_of_ranks
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
    unit="seconds",
    hint="Bytes over bytes per second. What does a rank still need of its part of the model? And"
    " how many ranks of one ring are in a node, each with a network card?",
    right="bytes of a rank's part, less its own shard, over the cards of its ring.",
)


# --- groups of a rank -----------------------------------------------------------------------------


def mesh_groups(rank, dp, pp, tp):
    copy = pp * tp
    first, begin = rank - rank % tp, rank - rank % copy
    layers = list(range(first, first + tp))
    pipeline = list(range(begin + rank % tp, begin + copy, tp))
    return layers, pipeline, list(range(rank % copy, dp * copy, copy))


groups_on_a_mesh = topic.exercise(
    "groups_on_a_mesh",
    mesh_groups,
    cases=(
        dict(rank=5, dp=2, pp=2, tp=2),
        dict(rank=17, dp=2, pp=3, tp=4),
        dict(rank=0, dp=3, pp=2, tp=1),
    ),
    answer=lambda solution, **case: [
        list(one) if hasattr(one, "__iter__") else one for one in solution(**case)
    ],
    hint="Write down the ranks as a grid of [dp, pp, tp], in order. How far apart are two ranks"
    " that differ by one in a single axis?",
    right="tp neighbours, stages that are tp apart, copies that are pp x tp apart.",
)


# --- bug hunt: a planner that looks away ----------------------------------------------------------

_GB = 10**9
_LAYOUTS = {  # bytes of each pipeline rank, seconds
    "A": ([60 * _GB, 78 * _GB], 10.0),
    "B": ([70 * _GB, 55 * _GB], 12.0),
    "C": ([40 * _GB, 40 * _GB], 14.0),
    "D": ([79 * _GB, 20 * _GB], 9.0),
    "E": ([50 * _GB, 50 * _GB], 16.0),
    "F": ([30 * _GB, 77 * _GB, 30 * _GB], 8.0),  # full in the middle
    "G": ([75 * _GB] * 4, 7.0),
    "H": ([90 * _GB, 70 * _GB, 90 * _GB], 6.0),
}
_FULL = round(1.066 * 75 * _GB)  # a card that G fills


def _given(names, card_bytes=80 * _GB):
    return dict(layouts=[(name, *_LAYOUTS[name]) for name in names], card_bytes=card_bytes)


planner_of_the_first_rank = topic.exercise(
    "planner_of_the_first_rank",
    cases=(
        _given("ABC", 76 * _GB),
        _given("CD"),
        _given("BCA"),
        _given("BCE"),
        _given("ECB"),
        _given("EFC"),
        _given("BG", _FULL),
        _given("ADH"),
    ),
    words=(
        "three layouts on cards of 76 GB",
        "two layouts on cards of 80 GB",
        "three layouts on cards of 80 GB",
        "three other layouts on cards of 80 GB",
        "the slowest first",
        "three ranks, the fullest in the middle",
        "a layout that fills the card",
        "three layouts of which none fits",
    ),
    hint="Of a pipeline of two ranks, which one has the head and the loss? What does the planner"
    " know of that rank?",
    right="the fullest rank decides, whichever it is.",
)


# --- task: four ranks of the reader's own ---------------------------------------------------------


def _list_of_parameters(given):
    said = "whole numbers are wanted: each rank counts the parameters of its pipeline."
    return list_of_ranks(given, (lambda one: not isinstance(one, int), said))


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
