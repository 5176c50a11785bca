"""The error of a script that cannot be rehearsed: one sentence."""


class CannotRehearse(RuntimeError):
    """The script needs what a rehearsal does not have. The sentence has no full stop: the line of
    the script and a way out follow."""
