"""Chapter 6, saving: what a reader writes runs on a pretended disk that can stop after every single
thing it does."""

from coursekit.exercises.checker import Exercise, Misconception

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


def survives(solution, power_fails) -> tuple[list[str], str]:
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
    return sorted(set(found)), found[-1]


def _save(*steps):
    """A solution, as (operation, names)."""

    def save(disk, content):
        for operation, *names in steps:
            getattr(disk, operation)(*names, *([content] if operation == "write" else []))

    return save


_WRITE, _FLUSH, _MOVE = (
    ("write", "model.new"),
    ("flush", "model.new"),
    ("rename", "model.new", NAME),
)

save_that_survives = Exercise(
    name="save",
    reference=_save(_WRITE, _FLUSH, _MOVE),
    cases=(dict(power_fails=False), dict(power_fails=True)),
    words=("the process is killed at any moment", "the power fails at any moment"),
    answer=survives,
    misconceptions=(
        Misconception(
            _save(("write", NAME), ("flush", NAME)),
            "you write over the old file: from the first byte to the last there is neither the old"
            " file nor the new one. Write beside the old file, under another name, and rename"
            " when the new file is whole.",
        ),
        Misconception(
            _save(("write", NAME)),
            "you write over the old file, and do not flush: a kill in between leaves half a"
            " file, and a power cut can leave one long afterwards.",
        ),
        Misconception(
            _save(_WRITE, _FLUSH, ("remove", NAME), _MOVE),
            "between the removal and the renaming no file has the name. Leave the old file where"
            " it is: renaming another file onto its name replaces it at once.",
        ),
        Misconception(
            _save(_WRITE, _MOVE),
            "right as long as only the process ends. But the file that you rename was not"
            " flushed: the system writes names and contents when it likes, and after a power cut"
            " the new name can be on half a file. Flush before you rename.",
        ),
        Misconception(
            _save(_WRITE, _MOVE, ("flush", NAME)),
            "you flush one step too late: if the power fails between the two, the old file is"
            " gone and only half of the new one is there. Flush before you rename.",
        ),
        Misconception(
            _save(_WRITE, _FLUSH),
            "the new file is whole and safe, but nobody finds it: it never gets the name.",
        ),
    ),
    right=(
        "whatever the moment, the name is on a whole file: first the new one is on the disk, then"
        " it gets the name."
    ),
)
