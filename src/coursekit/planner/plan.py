"""Which layout trains a model fastest on these GPUs? All legal layouts, the bytes of the fullest
rank and the seconds of a step of each, and the best of those that fit.

    found = plan("config.json", gpu="H100 SXM 80GB", gpus=64, batch=512, sequence=8192)
    print(found)
    found.best[0].layout            # a RankLayout; .seconds, .utilisation, .parts ...
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .layout import ADAPTED, NO_ADAPTERS, RankLayout, asked_layout, refuse_by_knobs
from .links import family_of
from .nearest import json_of_nearest, lines_of_nearest, nearest
from .search import CONTEXTS, MOST_BATCH, RULES, Search, knobs
from .speeds import BANDWIDTH_SHARE, SPEEDS, Speed, pace, step_values, usual_speed

NOT_TRIED = (
    "context parallelism where layouts fit without; unless asked for by its knob: offload, groups"
    " of shards, stage 3 in pipelines, tensor parallelism across nodes or beside experts,"
    " interleaved stages with unequal ends; not known: groups of more microbatches than pipeline"
    " ranks in interleaved stages"
)


@dataclass(frozen=True)
class LayoutPlan:
    """Answer of the planner. `best` are the fastest layouts that fit, one for each pair of degrees;
    `nearest` are pairs (what changes, layout) where none fits."""

    asked: RankLayout  # without its degrees
    batch: int
    speed: Speed
    legal: int
    fitting: int
    best: tuple
    nearest: tuple

    @property
    def fits(self) -> bool:
        return bool(self.best)

    @property
    def compared(self) -> dict:
        """How far such answers were from published measurements."""
        adapted = NO_ADAPTERS if self.asked.recipe in ADAPTED else ""
        family = family_of(self.asked.gpu)
        other = "" if f"{family}s" in self.speed.measured else f", none of them on the {family}"
        return {"bytes": self.asked.compared, "seconds": f"{self.speed}{other}{adapted}"}

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self) -> Iterator[str]:
        asked = self.asked
        yield (
            f"{asked.model} on {asked.gpus:,} x {asked.gpu}, {self.batch:,} sequences of"
            f" {asked.sequence:,} tokens in a step: {self.legal:,} legal layouts,"
            f" {self.fitting:,} fit."
        )
        for number, candidate in enumerate(self.best, 1):
            yield ""
            yield f"{number}. {candidate}"
        if not self.best:
            yield "Nearest that fits:" if self.nearest else "Nothing near fits."
            yield from lines_of_nearest(self.nearest)
        yield ""
        yield "Assumed:"
        for name in ("recipe", "kernels"):
            yield f"  {name} = {getattr(asked, name)}"
        reached = pace(asked.gpu, self.speed)["utilisation"]
        yield (
            f"  products reach {reached:.0%} of the GPU's FLOP/s, memory and links"
            f" {BANDWIDTH_SHARE:.0%} of their bandwidth"
        )
        yield f"  {self.speed.habits(asked.gpu)}"
        yield from (f"  {said}" for said in self.sensitivity())
        yield "  MFU counts all attention scores; NVIDIA's tables of TFLOP/s count half of them"
        yield f"  not tried: {NOT_TRIED}"
        yield "Compared:"
        for said in self.compared.values():
            yield f"  {said}."

    def sensitivity(self) -> Iterator[str]:
        """Seconds of these layouts with other habits, between which no row decides."""
        for changed, words in other_habits(self.speed, self.asked) if self.best else ():
            seconds = [step_values(one.layout, changed)["layout_seconds"] for one in self.best]
            first = seconds.index(min(seconds)) + 1
            yield (
                f"{words}, layout 1 would take {seconds[0]:.3g} s, and layout {first} would be the"
                " first of these"
            )

    def as_json(self) -> dict:
        return dict(
            sensitivity=list(self.sensitivity()),
            fits=self.fits,
            legal=self.legal,
            fitting=self.fitting,
            best=[
                dict(vars(one), layout=knobs(one.layout), data_parallel=one.data_parallel)
                for one in self.best
            ],
            nearest=list(json_of_nearest(self.nearest)),
            recipe=self.asked.recipe,
            kernels=self.asked.kernels,
            compared=self.compared,
            not_tried=NOT_TRIED,
        )


LONG_SEQUENCE = 16_384  # rows of classes whose score_share is 1 are shorter


def other_habits(speed: Speed, asked) -> Iterator[tuple[Speed, str]]:
    """Speeds that differ from one in what its rows cannot tell, with the condition in words."""
    today, blackwell = SPEEDS["Megatron-LM on H100"], SPEEDS["Megatron-LM on B200"]
    if pace(asked.gpu, speed)["hidden_message_share"]:
        yield replace(speed, hidden_message_share=0.0), "if no tensor-parallel message hid"
    if not speed.overlap:
        hidden = max(speed.hidden_message_share, today.hidden_message_share)
        beside = replace(speed, overlap=True, hidden_message_share=hidden)
        yield beside, "if messages travelled beside computing, as Megatron-LM sends them today"
    if asked.sequence >= LONG_SEQUENCE and speed.score_share == 1:
        skipped = replace(speed, score_share=blackwell.score_share)
        yield skipped, "if attention skipped what is masked, as on B200s"


def plan(
    model, *, gpu, gpus, batch, sequence, speed=None, most=5, reserve_gb=None, **more
) -> LayoutPlan:
    """The LayoutPlan for a model, by name or by the path of its config.json: `batch` sequences of
    `sequence` tokens in a step on `gpus` GPUs of a preset, at a speed of SPEEDS. `more` may fix any
    knob of RULES, at one value or at several, as in zero_stage=(0, 1), and give recipe, kernels and
    ranks_per_node. Raises InvalidModelConfig, InvalidQuantity or TypeError with one sentence."""
    fixed = {name: more.pop(name) for name in RULES if more.get(name) is not None}
    several = lambda values: tuple(values) if isinstance(values, (tuple, list)) else (values,)
    fixed = {name: several(values) for name, values in fixed.items()}
    if unknown := set(more) - {"recipe", "kernels", "ranks_per_node"}:
        raise TypeError(f"plan() knows no {min(unknown)}; knobs are {', '.join(RULES)}.")
    where = dict(gpu=gpu, gpus=gpus, sequence=sequence, zero_stage=0)
    asked = asked_layout(model, reserve_gb, **where, **more)
    asked.solved()  # refuses what no layout can mend
    name = speed or usual_speed(gpu, asked.kernels, experts=bool(asked.sizes.get("experts")))
    limits = dict(MOST_BATCH=MOST_BATCH, SPEEDS=SPEEDS)
    refuse_by_knobs("questions that plan refuses", limits, dict(batch=batch, most=most, speed=name))
    search = Search(asked, batch, SPEEDS[name], fixed)
    if "context_parallel" not in fixed and not (search.rows and search.fitting):
        shared = replace(search, contexts=CONTEXTS)
        search = shared if shared.rows and shared.fitting else search
    best = tuple(search.best(most))
    near = () if best else tuple(nearest(search.layout(search.smallest)))
    return LayoutPlan(asked, batch, SPEEDS[name], search.legal, search.fitting, best, near)
