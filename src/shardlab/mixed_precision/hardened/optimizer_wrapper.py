"""An optimizer around another one, which updates copies of the parameters: its groups, its piles,
its state. What a copy is, and when it is made, a subclass says.

    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...common.shards import take_place
from ...common.torch_clip_and_scale import note
from ...common.torch_internals import step_without_hooks

AT_ONCE_BYTES = 8 << 20  # many small tensors together, and little beside the model
AT_ONCE_ON_A_GPU = 128 << 20  # the update of a pile takes no less time than its launches
LEAST_PILES = 3  # in a small model, of which that would be all
# a parameter and its copy, which may be the parameter
CopiedPair = tuple[nn.Parameter, nn.Parameter]


class CannotCopy(ValueError):
    """Why an optimizer cannot update copies of these parameters."""


class OptimizerOfCopies(torch.optim.Optimizer):
    """See MasterWeights for the arguments. A subclass defines copy_of, take_gradients and step."""

    def __init__(self, params, of: type, *, at_once_bytes=None, hardened=True, **settings):
        check_optimizer(of, at_once_bytes)
        self.of, self.settings, self.at_once_bytes = of, settings, at_once_bytes
        self.copies: list[CopiedPair] = []
        self.pairs = self.copies  # as others see them: offloaded, the parameter is elsewhere
        self.frozen: list[tuple[str | None, nn.Parameter]] = []
        # of a parameter when it was its copy; before the first step nothing is known
        self.versions: dict[nn.Parameter, tuple[int, int]] = {}
        self.inner: torch.optim.Optimizer | None = None
        super().__init__(params, settings)  # calls add_param_group
        self.defaults = self.inner.defaults

    def add_param_group(self, param_group: dict):
        given = param_group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        named = [each if isinstance(each, tuple) else (None, each) for each in given]
        check_copied(named, {parameter for parameter, _ in self.copies})
        made = [(name, (p, self.copy_of(p))) for name, p in named if p.requires_grad]
        added = {parameter for _, parameter in named}
        self.frozen = [(name, p) for name, p in self.frozen if p not in added]
        self.frozen += [(name, p) for name, p in named if not p.requires_grad]
        masters = [master if name is None else (name, master) for name, (_, master) in made]
        if self.inner is None:
            self.all_at_once = changes_groups(self.of, param_group, self.settings)
            self.inner = self.of([{**param_group, "params": masters}], **self.settings)
        else:
            self.inner.add_param_group({**param_group, "params": masters})
        self.copies += [pair for _, pair in made]
        for _, (parameter, master) in made:
            take_place(master, [parameter])
        note([p for p, master in self.copies if p is not master], self)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def piles(self) -> Iterator[list[CopiedPair]]:
        """Pairs, of as many elements as at_once_bytes hold in fp32, and of one pair at least. All
        are one pile if a step also changes the groups: each step does so once."""
        together = 4 * sum(parameter.numel() for parameter, _ in self.copies)
        usual = AT_ONCE_ON_A_GPU if self.copies[0][0].is_cuda else AT_ONCE_BYTES
        most = self.at_once_bytes or min(usual, together // LEAST_PILES)
        pile, elements = [], 0
        for pair in self.copies:
            if pile and not self.all_at_once and 4 * (elements + pair[0].numel()) > most:
                yield pile
                pile, elements = [], 0
            pile.append(pair)
            elements += pair[0].numel()
        yield pile

    def why_not_clip(self, parameter: nn.Parameter) -> str:
        """Why PyTorch's clip_grad_norm_ cannot clip this parameter, or an empty string."""
        if parameter.grad is None and any(master.grad is not None for _, master in self.copies):
            return (
                "the gradients of these parameters are those of their fp32 copies now: call"
                " gradient_clipping.clip_gradients(optimizer, max_norm), or clip the parameters in"
                " optimizer.param_groups."
            )
        return ""

    def zero_grad(self, set_to_none: bool = True):
        for tensor in {tensor for pair in self.copies for tensor in pair}:
            if tensor.grad is not None:
                tensor.grad = None if set_to_none else tensor.grad.zero_()

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
                saved = states.get(number, {}).pop("master", None)
                check_saved(saved, master, number)
                parameter.copy_(master.copy_(saved))
        self.inner.load_state_dict({**state_dict, "state": states})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def __getstate__(self):
        raise CannotCopy(
            f"a {type(self).__name__} is not copied or pickled, for its copies belong to one model:"
            " make another one of the other model, and load state_dict()."
        )

    def __repr__(self):
        return f"{type(self).__name__}({self.inner!r})"


def changes_groups(of: type, param_group: dict, settings: dict) -> bool:
    """Whether step() changes its param_groups, as that of an optimizer that counts steps there. A
    trial tells."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.zeros_like(parameter)
    with torch.random.fork_rng(devices=[]):
        try:
            trial = of([{**param_group, "params": [parameter]}], **settings)
            before = str(trial)
            step_without_hooks(trial)
        except Exception:  # it wants other parameters than this one
            return False
    return str(trial) != before


# --- refusals -------------------------------------------------------------------------------------


def check_optimizer(of: type, at_once_bytes: int | None):
    if not (isinstance(of, type) and issubclass(of, torch.optim.Optimizer)):
        raise CannotCopy(
            f"of = {of!r}: it must be a class of optimizers, such as torch.optim.AdamW."
        )
    if issubclass(of, torch.optim.LBFGS):
        raise CannotCopy(
            f"of = {of.__name__}: it looks at all parameters at once, and copies are updated pile"
            " by pile; take one that updates each parameter by itself, such as AdamW."
        )
    if at_once_bytes is not None and not at_once_bytes > 0:
        raise CannotCopy(f"at_once_bytes = {at_once_bytes!r}: it must be above 0.")


def check_copied(named: list[tuple], known: set[nn.Parameter]):
    if not any(parameter.requires_grad for _, parameter in named):
        raise CannotCopy(
            f"a group of {len(named)} parameters, none of them trained: there is nothing to update."
        )
    for name, parameter in named:
        called = f"{name or 'a parameter'} of shape {list(parameter.shape)}"
        if not parameter.is_floating_point():
            raise CannotCopy(f"{called} is {parameter.dtype}: copies are fp32.")
        if parameter in known:
            raise CannotCopy(f"{called} is given twice: each belongs to one group, once.")
        known.add(parameter)


def check_still_frozen(frozen: list[tuple[str | None, nn.Parameter]]):
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise CannotCopy(
                f"{name or 'a parameter'} of shape {list(parameter.shape)} was frozen when the"
                " optimizer was made, and is trained now: make the optimizer anew, or give it the"
                " parameter by add_param_group once it is trained."
            )


def check_still_wide(pairs: list[CopiedPair]):
    for parameter, master in pairs:
        if parameter is master and parameter.element_size() < 4:
            raise CannotCopy(
                f"a parameter of shape {list(parameter.shape)} was its own master, and became"
                f" {parameter.dtype} after the optimizer was made: convert the model first."
            )


def check_saved(saved: Tensor | None, master: Tensor, number: int):
    if saved is None:
        raise CannotCopy(
            f"the state of parameter {number} has no master: it is another optimizer's. Load the"
            " model first and make the optimizer then; its copies begin as the parameters are."
        )
    if saved.shape != master.shape:
        raise CannotCopy(
            f"the saved master of parameter {number} is {list(saved.shape)}, this one"
            f" {list(master.shape)}: the state is another model's, or another rank's."
        )
