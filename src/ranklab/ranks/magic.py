"""`%%ranks 4`: a notebook cell on four ranks."""

import re
from contextlib import ExitStack

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from .faults import RankRaised
from .launch import ranks
from .links import two_hosts
from .world import World

NOT_THERE = (
    "{name} is a variable of the notebook, and ranks have variables of their own: make or import it"
    " in a %%ranks cell, or hand it to a function with world.run(function, {name})."
)


@magics_class
class RanksMagic(Magics):
    """Keeps the notebook's world from one cell to the next."""

    def __init__(self, shell):
        super().__init__(shell)
        self.world: World | None = None

    def use(self, world: World):
        """Run the next cells on ranks that somebody else has started, who may use them, too."""
        if self.world is not None and self.world is not world:
            self.close()
        plain = parse_argstring(self.run, str(world.world_size))
        self.world, self.opened = world, ExitStack()
        self.asked = (plain.world_size, plain.link, _options(plain))
        self.opened.callback(world.close)

    @magic_arguments()
    @argument(
        "world_size", nargs="?", type=int, help="how many ranks; left away: those that are there"
    )
    @argument("--device", help="cpu or cuda")
    @argument("--backend", help="gloo or nccl")
    @argument(
        "--share-gpus",
        action="store_true",
        help="NCCL for more ranks than GPUs: an experiment of NCCL 2.30",
    )
    @argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds that ranks may wait for one that does not come",
    )
    @argument("--limit", type=float, help="seconds that the cell may take")
    @argument(
        "--forbid-nan", action="store_true", help="a rank that brings a NaN to a sum is an error"
    )
    @argument(
        "--link",
        type=float,
        help="rehearse two hosts with a link of so many megabits a second between them",
    )
    @argument("--close", action="store_true", help="end the ranks")
    @line_cell_magic("ranks")
    def run(self, line: str, cell: str | None = None):
        """Run the cell on every rank. Its variables live there until a cell asks for another number
        of ranks or other options."""
        asked = parse_argstring(self.run, line)
        if asked.close:
            return self.close()
        if cell is not None:
            # a syntax error is the notebook's error, not a rank's
            compile(cell, "<this cell>", "exec")
        options = _options(asked)
        if asked.world_size is None and self.world is None:
            raise UsageError("how many ranks? Say %%ranks 4 the first time.")
        wanted = (asked.world_size, asked.link, options)
        if asked.world_size is not None and (self.world is None or self.asked != wanted):
            self.close()
            with ExitStack() as starting:
                hosts = (
                    starting.enter_context(two_hosts(asked.link)) if asked.link is not None else ()
                )
                self.world = starting.enter_context(ranks(asked.world_size, hosts=hosts, **options))
                # they stay open after this cell
                self.asked, self.opened = wanted, starting.pop_all()
        if cell is None:
            return
        try:
            self.world.cell(cell, asked.limit)
        except RankRaised as error:
            missing = re.search(r"raised NameError: name '(\w+)' is not defined", str(error))
            if missing is None or missing[1] not in self.shell.user_ns:
                raise
            raise RankRaised(f"{error}\n{NOT_THERE.format(name=missing[1])}", error.ranks) from None

    def close(self):
        if self.world is not None:
            self.opened.close()
            self.world = None


def _options(asked) -> dict:
    """The options of ranks() in a magic's line."""
    return dict(
        device=asked.device,
        backend=asked.backend,
        share_gpus=asked.share_gpus,
        patience_seconds=asked.patience,
        forbid_nan=asked.forbid_nan,
    )
