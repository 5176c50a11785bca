"""Which technique next? Questions about a layout, each a condition of formulas, asked in order. The
first that is answered with no names a technique.

    found = next_technique(layout, SPEEDS["Megatron-LM on H100"])
    found.question.asks, found.left, found.right, found.technique
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from coursekit.planner.layout import RankLayout
from coursekit.planner.speeds import Speed, parts_of, step_values

WORTH_A_MOVE = 0.05  # of the step


@dataclass(frozen=True)
class Question:
    """`left` is at most `right` if all is well. The first technique whose condition holds is next:
    (its condition in words, the condition, the technique)."""

    asks: str
    formula: str
    left: Callable
    right: Callable
    techniques: tuple


@dataclass(frozen=True)
class Next:
    """The first question that a layout fails, with both sides of its condition; without a question
    where it passes all."""

    question: Question | None
    left: float
    right: float
    technique: str


@dataclass(frozen=True)
class _Seen:
    """A layout with its bytes and shares of its step."""

    layout: RankLayout
    bytes: dict
    shares: dict

    @property
    def node_has_more(self) -> bool:
        """Whether tensor parallelism can double inside a node."""
        asked = self.layout
        t, p = 2 * asked.tensor_parallel, asked.pipeline_parallel
        heads = asked.sizes["key_value_heads"]
        return t <= asked.links.joined_gpus and asked.gpus % (t * p) == 0 and heads % t == 0

    @property
    def has_another_stage(self) -> bool:
        asked = self.layout
        copies = asked.gpus // (asked.tensor_parallel * asked.pipeline_parallel)
        return copies > 1 and asked.zero_stage < (3 if asked.pipeline_parallel == 1 else 1)

    @property
    def has_room(self) -> bool:
        """Whether twice the microbatch fits."""
        asked = self.layout
        larger = dict(microbatch=2 * asked.microbatch, accumulation_steps=asked.steps // 2)
        return asked.steps % 2 == 0 and replace(asked, **larger).fits


def _states(seen):
    names = ("rank_parameter_bytes", "rank_optimizer_bytes", "rank_backward_gradient_bytes")
    return sum(seen.bytes[name] for name in names)


def _share(*names):
    return lambda seen: sum(seen.shares[name] for name in names)


def _card(seen):
    return seen.bytes["gpu_memory_bytes"]


def _always(seen):
    return True


QUESTIONS = (
    Question(
        "Do the model states fit?",
        "states of a rank ≤ card",
        _states,
        _card,
        (
            ("stage < 3", lambda seen: seen.has_another_stage, "the next stage of ZeRO"),
            ("t < node", lambda seen: seen.node_has_more, "tensor parallelism"),
            ("else", _always, "a pipeline, or more GPUs"),
        ),
    ),
    Question(
        "Does the whole rank fit?",
        "peak, reserve, NCCL ≤ card",
        lambda seen: seen.layout.needed_bytes(seen.bytes),
        _card,
        (
            ("b > 1", lambda seen: seen.layout.microbatch > 1, "a smaller microbatch"),
            ("not all again", lambda seen: seen.layout.recompute_policy < 3, "recomputation"),
            ("t < node", lambda seen: seen.node_has_more, "tensor parallelism"),
            ("else", _always, "a pipeline, or more GPUs"),
        ),
    ),
    Question(
        "Is little recomputed?",
        "recomputation ≤ 5% of the step",
        _share("recomputing"),
        lambda seen: WORTH_A_MOVE,
        (
            ("t < node", lambda seen: seen.node_has_more, "tensor parallelism instead"),
            ("else", _always, "a pipeline instead"),
        ),
    ),
    Question(
        "Are d's messages hidden?",
        "exposed ≤ 5% of the step",
        _share("exposed"),
        lambda seen: WORTH_A_MOVE,
        (
            ("2b fits", lambda seen: seen.has_room, "a larger microbatch"),
            ("else", _always, "a pipeline, in stage 1"),
        ),
    ),
    Question(
        "Are t's messages short?",
        "messages ≤ 5% of the step",
        _share("messages"),
        lambda seen: WORTH_A_MOVE,
        (("", _always, "fewer tensor-parallel ranks"),),
    ),
    Question(
        "Is the pipeline busy?",
        "bubble ≤ 5% of the step",
        _share("bubble"),
        lambda seen: WORTH_A_MOVE,
        (("", _always, "more microbatches or stages"),),
    ),
)
DONE = "faster kernels: the GPU works"


def next_technique(layout: RankLayout, speed: Speed) -> Next:
    values = step_values(layout, speed)
    shares = {name: taken / values["layout_seconds"] for name, taken in parts_of(values).items()}
    seen = _Seen(layout, values | layout.solved(), shares)
    for question in QUESTIONS:
        left, right = question.left(seen), question.right(seen)
        if left > right:
            technique = next(what for _, holds, what in question.techniques if holds(seen))
            return Next(question, left, right, technique)
    return Next(None, 0, 0, DONE)
