"""Chapter 6, saving: what a reader writes runs on a pretended disk that can stop after every single
thing it does."""

from typing import NamedTuple

from coursekit.exercises.edits import Topic

topic = Topic(__name__)

NAME, OLD, NEW, HALF, NO_FILE = "model", "the old one", "the new one", "a half", "nothing"


class PowerFailure(BaseException):
    """The process was killed, or the power failed. No `except Exception` gets in the way."""


class Disk:
    """Files as a process sees them, and as they are on the disk, where what was not flushed may be
    a half. Names change at once."""

    def __init__(self, steps: int):
        self.left, self.seen, self.kept = steps, {NAME: OLD}, {NAME: OLD}

    def write(self, name: str, content: str):
        """Over what is there. Takes two steps: in between there is a half."""
        for part in (HALF, content):
            self._step()
            self.seen[name], self.kept[name] = part, HALF

    def flush(self, name: str):
        """Now the file is on the disk as the process sees it."""
        self._step()
        self.kept[name] = self.seen[name]

    def rename(self, name: str, to: str):
        """Rename at once. What had that name before is gone."""
        self._step()
        for files in (self.seen, self.kept):
            files[to] = files.pop(name)

    def remove(self, name: str):
        self._step()
        for files in (self.seen, self.kept):
            del files[name]

    def _step(self):
        if self.left == 0:
            raise PowerFailure
        self.left -= 1


class Found(NamedTuple):
    """Files that lie under the name: at any moment, and when the solution was through."""

    at_any_moment: list[str]
    at_the_end: str


def survives(solution, power_fails) -> Found:
    """The files that can be found under the name if it ends at any moment, and those when the
    solution was through."""
    found = []
    for steps in range(50):
        disk = Disk(steps)
        try:
            solution(disk, NEW)
            ended = False
        except PowerFailure:
            ended = True
        found.append((disk.kept if power_fails else disk.seen).get(NAME, NO_FILE))
        if not ended:
            break
    return Found(sorted(set(found)), found[-1])


def replace_the_file(disk, content):
    disk.write("model.new", content)
    disk.flush("model.new")
    disk.rename("model.new", "model")


save_that_survives = topic.exercise(
    "save_that_survives",
    replace_the_file,
    cases=(dict(power_fails=False), dict(power_fails=True)),
    words=("the process is killed at any moment", "the power fails at any moment"),
    answer=survives,
    right=(
        "whatever the moment, the name is on a whole file: first the new one is on the disk, then"
        " it gets the name."
    ),
)
