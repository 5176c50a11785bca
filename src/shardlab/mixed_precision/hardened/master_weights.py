"""The core's optimizer on fp32 copies of 16-bit weights, for any optimizer of PyTorch.

Make MasterWeights after DistributedDataParallel and tensor parallelism. Stages 1 and 2 of ZeRO make
it of their shards: zero.shard(model, MasterWeights, stage=1, of=AdamW). In stage 3 the shards are
fp32 already.

It makes few gradients in fp32 at a time: pile by pile, also where a scaler has not unscaled them,
for it knows the protocol of PyTorch's fused optimizers (`grad_scale`, `found_inf`).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...common.before_step import note
from ...common.shards import take_place
from ...common.torch_internals import storage_key, version

AT_ONCE_BYTES = 8 << 20  # many small tensors together, and little beside the model
AT_ONCE_ON_A_GPU = 128 << 20  # the update of a pile takes no less time than its launches
LEAST_PILES = 3  # in a small model, of which that would be all
HALVES = torch.float16, torch.bfloat16
# a parameter and its copy, which may be the parameter
CopiedPair = tuple[nn.Parameter, nn.Parameter]


class CannotCopy(ValueError):
    """Why an optimizer cannot update copies of these parameters."""


class MasterWeights(torch.optim.Optimizer):
    """Any optimizer that updates one parameter after the other, on fp32 copies of 16-bit
    parameters.

    params              parameters, or groups of them, as torch.optim takes them
    of                  torch.optim.AdamW, ...; **settings are its arguments. PyTorch's own update a
                        pile at a time. Another class may look at all of them, so it gets all
    at_once_bytes       of fp32 gradients that are made at a time; by default 8 MiB, on a GPU
                        128 MiB, and at most a third of all
    consume_gradients   step() takes the 16-bit gradients and leaves None; the largest come last,
                        when the others are gone, which lowers the peak

    If somebody else writes a parameter, as load_state_dict() does, its master takes the values. A
    write through `.data` or by a collective is found before the first step only. fp32 parameters
    are their own masters; frozen ones have none. The param_groups are those of the optimizer
    inside, which knows the masters alone."""

    def __init__(self, params, of, *, at_once_bytes=None, consume_gradients=False, **settings):
        self.inner = None
        self.at_once_bytes, self.consumes = at_once_bytes, consume_gradients
        self.all_at_once = not of.__module__.startswith("torch.optim.")
        self.copies: list[CopiedPair] = []
        self.pairs = self.copies  # as others see them: offloaded, the parameter is elsewhere
        self.made_of: dict[nn.Parameter, tuple] = {}
        # of a parameter when it was its copy; before the first step nothing is known
        self.versions: dict[nn.Parameter, tuple[int, int]] = {}
        super().__init__(params, settings)  # calls add_param_group
        # with all groups: in PyTorch 2.8, Adagrad makes no states for one that is added
        self.inner = of(self.param_groups, **settings)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.defaults = self.inner.defaults

    def add_param_group(self, param_group: dict):
        given = param_group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        named = [each if isinstance(each, tuple) else (None, each) for each in given]
        parameters = [p for _, p in named]
        if len({*parameters}.union(p for p, _ in self.copies)) < len(parameters + self.copies):
            raise CannotCopy("a parameter is given twice: each belongs to one group, once.")
        made = [(name, p, self.copy_of(p)) for name, p in named if p.requires_grad]
        masters = [master if name is None else (name, master) for name, _, master in made]
        add = self.param_groups.append if self.inner is None else self.inner.add_param_group
        add({**param_group, "params": masters})
        for _, parameter, master in made:
            self.copies.append((parameter, master))
            take_place(master, [parameter])
        self.made_of.update((p, (p.dtype, p.requires_grad)) for p in parameters)
        note([p for p, master in self.copies if p is not master], self)

    def copy_of(self, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.detach().float()) if parameter.dtype in HALVES else parameter

    def piles(self) -> Iterator[list[CopiedPair]]:
        """Pairs, of as many elements as at_once_bytes hold in fp32, and of one pair at least."""
        together = 4 * sum(parameter.numel() for parameter, _ in self.copies)
        usual = AT_ONCE_ON_A_GPU if self.copies[0][0].is_cuda else AT_ONCE_BYTES
        most = self.at_once_bytes or min(usual, together // LEAST_PILES)
        piles, elements = [[]], 0
        for pair in self.copies:
            if piles[-1] and not self.all_at_once and 4 * (elements + pair[0].numel()) > most:
                piles.append([])
                elements = 0
            piles[-1].append(pair)
            elements += pair[0].numel()
        if self.consumes:
            piles.sort(key=lambda pile: max(parameter.numel() for parameter, _ in pile))
        return piles

    @torch.no_grad()
    def take_gradients(self):
        """The masters get all gradients, in fp32, and the parameters lose them. Called after each
        microbatch, it adds them up in fp32."""
        for parameter, master in self.copies:
            if parameter is not master and parameter.grad is not None:
                gradient, parameter.grad = parameter.grad.float(), None
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    @property
    def _step_supports_amp_scaling(self) -> bool:  # PyTorch's name; its kernel takes no bf16
        found = [tensor.grad for tensor in self.scaled()]
        return all(g.dtype is torch.float16 and g.layout is torch.strided for g in found)

    def scaled(self) -> list[Tensor]:
        """Tensors whose gradients a scaler may look at before step() unscales them."""
        return [tensor for pair in self.pairs for tensor in {*pair} if tensor.grad is not None]

    @torch.no_grad()
    def step(self):
        """PyTorch's optimizers skip a parameter without a gradient. So the inner optimizer updates
        one pile of masters after another, and few gradients exist twice at a time."""
        if any((p.dtype, p.requires_grad) != made for p, made in self.made_of.items()):
            raise CannotCopy(
                "a parameter was frozen, unfrozen or converted after the optimizer was made: do so"
                " before, and make the optimizer anew."
            )
        # a scaler that steps here without unscaling leaves the two beside the optimizer
        if vars(self).get("found_inf", False):
            return
        taken = {master: master.grad for _, master in self.copies}
        for master in taken:
            master.grad = None
        for pile in self.piles():
            for parameter, master in pile:
                self.before_update(parameter, master)
                master.grad = taken[master]
                if parameter is not master and parameter.grad is not None:  # came since then
                    late = self.in_fp32(parameter)
                    master.grad = late if master.grad is None else master.grad + late
            self.inner.step()
            for parameter, master in pile:
                self.after_update(parameter, master)
                master.grad = None
        for master, gradient in taken.items():
            master.grad = gradient

    def in_fp32(self, parameter: nn.Parameter) -> Tensor:
        gradient = parameter.grad.float()
        if self.consumes:
            parameter.grad = None
        scale = vars(self).get("grad_scale")
        return gradient if scale is None else gradient.mul_(scale.double().reciprocal().float())

    def before_update(self, parameter: nn.Parameter, master: nn.Parameter):
        """Somebody may have written into the parameter: a checkpoint, ranks that begin alike. Where
        it still is the rounding of its master, the master keeps what rounding takes away."""
        if parameter is not master and write_count(parameter) != self.versions.get(parameter):
            same = master.to(parameter.dtype) == parameter
            master.copy_(torch.where(same, master, parameter))

    def after_update(self, parameter: nn.Parameter, master: nn.Parameter):
        if parameter is not master:
            parameter.copy_(master)
        self.versions[parameter] = write_count(parameter)

    def zero_grad(self, set_to_none: bool = True):
        for tensor in {tensor for pair in self.copies for tensor in pair}:
            if tensor.grad is not None:
                tensor.grad = None if set_to_none else tensor.grad.zero_()

    def why_not_clip(self, parameter: nn.Parameter) -> str:
        """Why PyTorch's functions cannot clip this parameter, or an empty string."""
        taken = parameter.grad is None and any(master.grad is not None for _, master in self.copies)
        return taken * (
            "the gradients of these parameters are those of their fp32 copies now: call"
            " gradient_clipping.clip_gradients(optimizer, max_norm), or clip the parameters in"
            " optimizer.param_groups."
        )

    def state_dict(self) -> dict:
        """The inner optimizer's; a parameter's copy is in its state, "master", beside moments."""
        states = self.inner.state_dict()
        for number, (parameter, master) in enumerate(self.copies):
            if parameter is not master and master.shape == parameter.shape:
                state = states["state"].get(number, {})
                states["state"][number] = {**state, "master": master.detach()}
        return states

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict):
        """Sets the parameters as well: each is the rounding of its master."""
        states = {number: dict(state) for number, state in state_dict["state"].items()}
        for number, (parameter, master) in enumerate(self.copies):
            if parameter is not master and master.shape == parameter.shape:
                if "master" not in states.get(number, {}):
                    raise CannotCopy(
                        f"the state of parameter {number} has no master: load a state"
                        " that MasterWeights has given."
                    )
                parameter.copy_(master.copy_(states[number].pop("master")))
        self.inner.load_state_dict({**state_dict, "state": states})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


def write_count(parameter: nn.Parameter) -> tuple[int, int]:
    """Other numbers after a write, but not after one through `.data` or by a collective."""
    return version(parameter), storage_key(parameter.untyped_storage())
