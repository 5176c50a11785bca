"""Two things that ranks of tensor parallelism must have alike, and that no loss shows: the batch,
and the random numbers of dropout. And one that they must not: parts of weights.

The first forward of training compares them over the group, once. Training means that gradients are
on and, where the model drops elements at all, that some dropout is on. All ranks of the group pass
the place of the comparison in the same order, whether they drop elements or not, so none waits in
vain. Later steps compare nothing: a rank that draws numbers alone after the first is not found. Nor
is another batch that whole layers with trained parameters read first: what they make of one batch
may differ in its last bits between ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.agreement import agree, batch_of, fingerprint, unlogged
from ...common.torch_internals import active_fake_mode, disable_modes, never_compiled
from ...gpt import Dropout
from .checks import CannotSplit
from .layers import AmongRanks, OwnDropout, TokenEmbedding

DROPS = (Dropout, OwnDropout, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
DROPS += (nn.AlphaDropout, nn.FeatureAlphaDropout)
RULE = (
    "the ranks of a tensor-parallel group see the same batch and drop the same elements; choose the"
    " batch by the data-parallel rank, and the seed too, as torch.manual_seed(seed + dp_rank) does"
)


class FirstForward(AmongRanks):
    """Compares before the first of these modules that is called, and is no hook any more then."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None, own_tokens: bool):
        self.group, self.own_tokens = group, own_tokens
        self.dropping = [module for module in model.modules() if isinstance(module, DROPS)]
        self.handles = []

    def watch(self, module: nn.Module):
        """All ranks of the group call the module in the same order as others that are watched."""
        self.handles.append(module.register_forward_pre_hook(self, with_kwargs=True))

    @never_compiled
    def __call__(self, module: nn.Module, positional: tuple, named: dict):
        if not torch.is_grad_enabled() or active_fake_mode() is not None:
            return
        given = [x for x in (*positional, *named.values()) if isinstance(x, Tensor)]
        whole = not self.own_tokens or isinstance(module, TokenEmbedding)
        with disable_modes(), unlogged(), torch.no_grad():
            facts = [batch_of(x) for x in given if whole and not x.requires_grad]
            facts.append(self.numbers_for_dropout(given))
            agree(facts, self.group, CannotSplit, RULE)
            self.check_parts(module)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self.rates() and not self.rates(on=True):  # an evaluation, with gradients on
            self.watch(module)

    def check_parts(self, module: nn.Module):
        """Every rank has its own parts of what the module computes with."""
        own = {
            f"{name}.{key}": part.flatten()[:64].tolist()
            for name, child in module.named_modules(prefix=type(module).__name__)
            for key, part in child.named_parameters(recurse=False)
            if key in getattr(child, "cuts", ())
        }
        own = {name: some for name, some in own.items() if len({*some}) > 1}
        every = [own] * dist.get_world_size(self.group)
        dist.all_gather_object(every, own, self.group)
        if own and every.count(own) == len(every) > 1:
            raise CannotSplit(
                f"all ranks have one part of {', '.join(own)}: initialise before the cut, and give"
                " DDP and FSDP the group of the ranks with the same part, such as mesh.dp.group."
            )

    def rates(self, on: bool = False) -> list[float]:
        dropping = [module for module in self.dropping if module.training or not on]
        return sorted({module.p for module in dropping if module.p})

    def numbers_for_dropout(self, given: list[Tensor]) -> str:
        rates = self.rates(on=True)
        if not rates:
            return "no dropout"
        on_gpu = any(x.is_cuda for x in given)  # whose own generator its dropout draws from
        generator = torch.cuda if on_gpu else torch
        return (
            f"dropout of {', '.join(map(str, rates))} from a generator with seed"
            f" {generator.initial_seed()} and state {fingerprint(generator.get_rng_state())}"
        )
