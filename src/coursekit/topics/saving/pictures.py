"""Still pictures of the section on saving: what a crash leaves, and eight files for five ranks."""

from typing import NamedTuple

from coursekit.show.drawing import Drawing

# --- what a crash leaves --------------------------------------------------------------------------


class SavePhase(NamedTuple):
    """A phase of a save, and what can be read if the save is killed in it."""

    does: str
    found: str


OLD_SAVE, NEW_SAVE, NO_SAVE = "the old save", "the new save", "nothing"
SAVE_PHASES = (
    SavePhase("all ranks write, flush", OLD_SAVE),
    SavePhase("manifest", OLD_SAVE),
    SavePhase("rename", OLD_SAVE),
    SavePhase("flush", NEW_SAVE),
    SavePhase("oldest goes", NEW_SAVE),
)
OVERWRITE_PHASES = (
    SavePhase("opens the old file, empties it", NO_SAVE),
    SavePhase("writes", NO_SAVE),
)
FOUND_LOOKS = {
    OLD_SAVE: "quiet",
    NEW_SAVE: "activations pale",
    NO_SAVE: "communication pale dashed",
}


def found_in_a_row(phases):
    """(what is found, its first phase, the phase after its last) of phases in a row."""
    found = []
    for number, phase in enumerate(phases):
        if found and found[-1][0] == phase.found:
            found[-1][2] = number + 1
        else:
            found.append([phase.found, number, number + 1])
    return found


def draw_crash_points():
    drawing = Drawing("crash-points", "What can be read after a crash, phase by phase")
    rows = (
        (0, "torch.save over the old file", OVERWRITE_PHASES, (0, 212, 396)),
        (124, "save, as in this book", SAVE_PHASES, (0, 142, 208, 264, 308, 396)),
    )
    said = []
    for top, title, phases, edges in rows:
        drawing.text(0, top + 16, title, "bold")
        for phase, begin, end in zip(phases, edges, edges[1:]):
            drawing.box(begin + 2, top + 26, end - begin - 3, 28, "frame", 4)
            middle = (begin + end) / 2
            lines = [phase.does] if end - begin > 7.2 * len(phase.does) else phase.does.split()
            if len(lines) > 2:
                lines = [" ".join(lines[:-1]), lines[-1]]
            drawing.text(middle, top + 45, " ".join(lines), "middle small")
        drawing.text(0, top + 76, "killed there, you can read", "small soft")
        for found, begin, end in found_in_a_row(phases):
            x, wide = edges[begin] + 2, edges[end] - edges[begin] - 3
            drawing.box(x, top + 82, wide, 26, FOUND_LOOKS[found], 4)
            drawing.text(x + wide / 2, top + 100, found, "middle small bold")
        said.append(f"{title}: " + "; ".join(f"killed at '{m.does}', {m.found}" for m in phases))
    words = (
        "Two rows of boxes from left to right, and beneath each what can be read if the run is"
        f" killed there. {'. '.join(said)}."
    )
    return drawing.svg(234, words)


# --- eight files, five ranks ----------------------------------------------------------------------

DRAWN_FILES, DRAWN_RANKS, DRAWN_ELEMENTS = 8, 5, 40


def even_chunks(elements, parts):
    """The elements of each part; the first parts have one more where they are not even."""
    each, more = divmod(elements, parts)
    begins = [part * each + min(part, more) for part in range(parts + 1)]
    return list(map(range, begins, begins[1:]))


def drawn_pieces():
    """(file, rank, the elements that the rank reads of that file), in order."""
    files, ranks = (
        even_chunks(DRAWN_ELEMENTS, DRAWN_FILES),
        even_chunks(DRAWN_ELEMENTS, DRAWN_RANKS),
    )
    return [
        (file, rank, range(max(one.start, other.start), min(one.stop, other.stop)))
        for file, one in enumerate(files)
        for rank, other in enumerate(ranks)
        if max(one.start, other.start) < min(one.stop, other.stop)
    ]


def draw_resharding():
    drawing = Drawing("resharding", "Eight files of a save, read by five ranks")
    left, long = 2, 396
    x = lambda element: left + long * element / DRAWN_ELEMENTS
    found = drawn_pieces()
    drawing.text(left, 14, f"{DRAWN_FILES} files, as {DRAWN_FILES} ranks wrote them", "small")
    drawing.text(left, 178, f"{DRAWN_RANKS} ranks that go on", "small")
    for file, chunk in enumerate(even_chunks(DRAWN_ELEMENTS, DRAWN_FILES)):
        drawing.box(x(chunk.start) + 1, 22, x(chunk.stop) - x(chunk.start) - 2, 30, "quiet")
        drawing.text((x(chunk.start) + x(chunk.stop)) / 2, 42, file, "middle")
    for rank, chunk in enumerate(even_chunks(DRAWN_ELEMENTS, DRAWN_RANKS)):
        look = "parameters" if rank % 2 == 0 else "gathered"
        wide = x(chunk.stop) - x(chunk.start) - 2
        drawing.box(x(chunk.start) + 1, 128, wide, 30, look)
        ink = "white" if rank % 2 == 0 else "ink"
        middle = (x(chunk.start) + x(chunk.stop)) / 2
        drawing.text(middle, 148, f"rank {rank}", f"middle {ink}")
    for _, rank, both in found:
        look = "parameters" if rank % 2 == 0 else "gathered"
        begin, end = x(both.start) + 2, x(both.stop) - 2
        drawing.path(f"M{begin:.1f} 54H{end:.1f}V126H{begin:.1f}z", f"{look} pale")
        drawing.text((begin + end) / 2, 95, len(both), "middle small")
    reads = [sum(other == rank for _, other, _ in found) for rank in range(DRAWN_RANKS)]
    each = "; ".join(
        f"rank {rank} reads "
        + ", ".join(f"{len(both)} of file {file}" for file, other, both in found if other == rank)
        for rank in range(DRAWN_RANKS)
    )
    words = (
        f"A strip of {DRAWN_ELEMENTS} elements, cut above into {DRAWN_FILES} files of"
        f" {DRAWN_ELEMENTS // DRAWN_FILES} and below into {DRAWN_RANKS} ranks of"
        f" {DRAWN_ELEMENTS // DRAWN_RANKS}, with {len(found)} pieces between them."
        f" {each}. The ranks read {', '.join(map(str, reads))} pieces."
    )
    return drawing.svg(184, words)


PICTURES = {"crash-points": draw_crash_points, "resharding": draw_resharding}
