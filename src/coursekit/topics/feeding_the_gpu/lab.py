"""Lab 12 beside its cells: bytes from the disk, rows of copies, a figure."""

import os
from pathlib import Path

import plotly.graph_objects as go
import torch

from coursekit.show.figures import axis, new_figure
from coursekit.show.palette import TIMELINE
from shardlab.data_loading.core import TokenFile, write_tokens

IO = Path("/proc/self/io")


def large_file(path: Path, size: int) -> Path:
    """A file of so many bytes, written and on its disk. A sparse one would not be read."""
    with path.open("wb") as file:
        for _ in range(size // 1_000_000):
            file.write(bytes(1_000_000))
        os.fsync(file.fileno())
    return path


def megabytes_from_the_disk(path: Path, read) -> float | None:
    """Megabytes that come from the disk while `read()` runs, on a file that the system has
    forgotten; None where the system does not count them, 0 where the file is in memory alone."""
    if not IO.exists() or not hasattr(os, "posix_fadvise"):
        return None
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    counted = lambda: int(IO.read_text().partition("\nread_bytes: ")[2].split()[0])
    before = counted()
    read()
    return (counted() - before) / 1e6


def rows_of_copies(rows: int, letters: int = 20, length: int = 8, documents: int = 4):
    """(rows of one random document and its copies, the documents)."""
    first = torch.randint(letters, (rows, length)).repeat_interleave(documents, 0)
    numbers = torch.arange(len(first)).view(rows, documents)
    return [[(number, length) for number in row] for row in numbers.tolist()], first


def two_parts(file: TokenFile) -> list[TokenFile]:
    """Files of nine tenths to train on and of the rest."""
    end, found = 9 * len(file) // 10, []
    for number, tokens in enumerate((file.tokens[:end], file.tokens[end:])):
        path = file.path.with_suffix(f".{number}")
        write_tokens(path, tokens, file.vocabulary)
        found.append(TokenFile(path, file.vocabulary))
    return found


def figure_of_workers(found: dict[int, float], by_formula: dict[int, float]) -> go.Figure:
    """Milliseconds of a step: bars are what was measured, outlines what the formula says."""
    figure = new_figure("A step with its loading, by the number of workers, in ms", 300)
    names = [str(workers) for workers in found]
    measured = dict(color=TIMELINE["forward"].light, line=dict(color=TIMELINE["forward"].line))
    outline = dict(color="rgba(0, 0, 0, 0)", line=dict(color=TIMELINE["forward"].line, width=3))
    for name, values, look, width in (
        ("measured", found, measured, 0.5),
        ("by the formula", by_formula, outline, 0.7),
    ):
        ms = [round(value) for value in values.values()]
        figure.add_trace(go.Bar(x=names, y=ms, name=name, marker=look, width=width))
    figure.update_layout(barmode="overlay", showlegend=True, legend=dict(orientation="h", y=-0.2))
    figure.update_xaxes(axis(type="category"))
    return figure.update_yaxes(axis(ticksuffix=" ms", rangemode="tozero", showgrid=True))
