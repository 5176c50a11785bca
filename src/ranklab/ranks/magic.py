"""`%%ranks 4`: a notebook cell on four ranks. Other options are those of ranks(), in a cell."""

import re

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from .faults import RankRaised
from .world import World, ranks

PATIENCE_SECONDS = 60.0
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
        if self.world not in (None, world):
            self.world.close()
        self.world, self.asked = world, (world.world_size, PATIENCE_SECONDS)

    @magic_arguments()
    @argument(
        "world_size", nargs="?", type=int, help="how many ranks; left away: those that are there"
    )
    @argument(
        "--patience",
        type=float,
        default=PATIENCE_SECONDS,
        help="seconds that ranks may wait for one that does not come",
    )
    @line_cell_magic("ranks")
    def run(self, line: str, cell: str | None = None):
        """Run the cell on every rank. Its variables live there until a cell asks for another number
        of ranks or another patience."""
        asked = parse_argstring(self.run, line)
        if cell is not None:
            # a syntax error is the notebook's error, not a rank's
            compile(cell, "<this cell>", "exec")
        if asked.world_size is None and self.world is None:
            raise UsageError("how many ranks? Say %%ranks 4 the first time.")
        wanted = asked.world_size, asked.patience
        if asked.world_size is not None and (self.world is None or self.asked != wanted):
            if self.world is not None:
                self.world.close()
                self.world = None
            self.use(ranks(asked.world_size, patience_seconds=asked.patience))
            self.asked = wanted
        if cell is None:
            return
        try:
            self.world.cell(cell)
        except RankRaised as error:
            missing = re.search(r"raised NameError: name '(\w+)' is not defined", str(error))
            if missing is None or missing[1] not in self.shell.user_ns:
                raise
            raise RankRaised(f"{error}\n{NOT_THERE.format(name=missing[1])}", error.ranks) from None
