"""Starting ranks, or joining those that torchrun has started."""

import sys

from . import torchrun
from .asked import Asked, check_asked
from .links import Host
from .server import start_method
from .world import World


def ranks(
    world_size: int,
    *,
    device: str | None = None,
    backend: str | None = None,
    share_gpus: bool = False,
    patience_seconds: float = 60.0,
    hosts: tuple[Host, ...] = (),
    method: str | None = None,
    announce: bool = True,
):
    """Start `world_size` ranks; close them with `close()` or by leaving the `with`.

    device            "cuda" or "cpu"; by itself: GPUs if there are any
    backend           "nccl" or "gloo"; by itself: NCCL with a GPU for each rank, else gloo
    share_gpus        NCCL for more ranks than GPUs: an experiment of NCCL 2.30, not yet seen to
                      work here
    patience_seconds  how long ranks may wait in a collective for one that does not come
    hosts             rehearsed hosts (see links.py) among which the ranks are divided; their
                      backend is gloo, as NCCL would go past the link
    method            "forkserver" or "spawn"; by itself what this system can do
    announce          print one line that says what was started

    Under torchrun this process is a rank already: ranks() returns torchrun's world, and the same
    code works. Raises ValueError, one sentence, if this machine cannot provide the request.
    """
    asked = Asked(
        world_size,
        device,
        backend,
        share_gpus,
        patience_seconds,
        hosts,
        method,
        announce,
    )
    check_asked(asked)
    if torchrun.started_us():
        if hosts:
            raise ValueError(
                f"hosts = {hosts!r}: torchrun has placed these ranks already. Leave hosts away."
            )
        return torchrun.Torchrun(asked)
    loaded = sys.modules.get("torch.distributed")
    if loaded is not None and loaded.is_available() and loaded.is_initialized():
        here = f"rank {loaded.get_rank()} of {loaded.get_world_size()}"
        raise ValueError(f"this process is {here}: a rank cannot start a world of its own.")
    backend = "gloo" if hosts else backend
    return World(asked._replace(method=method or start_method(), backend=backend))
