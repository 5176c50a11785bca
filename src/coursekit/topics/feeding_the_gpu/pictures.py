"""The still picture of chapter 12: bytes a second, asked for and delivered."""

from math import log10
from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import Drawing
from coursekit.show.format import format_as


class ByteRate(NamedTuple):
    """Something that asks for bytes or delivers them, and how many a second."""

    words: str
    bytes_per_second: float


def text_rate(model: str) -> float:
    """Bytes a second that a model asks of a token file, on an H100 at half its rate."""
    given = quantities(model=model, gpu="H100 SXM 80GB")
    name = "token_stream_bytes_per_second"
    return evaluate([name], utilisation=0.5, allow_unused=True, **given)[name]


IMAGE_BYTES = 143.1e9 / 1_281_167  # ImageNet as the benchmark cited on the page stored it


def byte_rates():
    """(title, look, rates) of what asks and of what delivers."""
    asks = (
        ByteRate("Llama 3 8B, tokens", text_rate("Llama 3 8B")),
        ByteRate("GPT-2 124M, tokens", text_rate("GPT-2 124M")),
        ByteRate("1,000 images a second", 1000 * IMAGE_BYTES),
    )
    gives = (
        ByteRate("one core, tokenising", 10e6),
        ByteRate("one core, images of 8 ms", 125 * IMAGE_BYTES),
        ByteRate("4 KiB at random, cold", 180e6),
        ByteRate("images from S3", 5800 * IMAGE_BYTES),
        ByteRate("a file in order, cold", 4e9),
    )
    return (
        ("an H100 asks for", "forward", asks),
        ("delivered", "communication", gives),
    )


def draw_byte_rates():
    drawing, top = Drawing("byte-rates", "Bytes a second, asked for and delivered"), 0
    left, decade, least = 168, 36, 10_000
    place = lambda rate: left + decade * log10(rate / least)
    sentences = []
    for power in range(0, 6):
        at = place(least * 10**power)
        drawing.path(f"M{at:.1f} 22V246", "grid")
        if power % 2 == 0:
            label = format_as(least * 10**power, "bandwidth")
            drawing.text(at, 262, label, "middle small soft")
    for title, look, rates in byte_rates():
        drawing.text(0, top + 16, title, "bold small")
        top += 22
        for words, rate in rates:
            said = format_as(rate, "bandwidth")
            drawing.text(0, top + 15, words, "small")
            drawing.path(f"M{left} {top + 10}H{place(rate):.1f}", f"line {look}")
            drawing.box(place(rate) - 5, top + 5, 10, 10, look, 5)
            beyond = place(rate) > 330
            at, looks = (place(rate) - 9, "small end") if beyond else (place(rate) + 9, "small")
            drawing.text(at, top + 5 if beyond else top + 15, said, looks)
            sentences.append(f"{words}: {said}")
            top += 25
        top += 4
    return drawing.svg(270, "Two groups on a logarithmic axis. " + "; ".join(sentences) + ".")


PICTURES = {"byte-rates": draw_byte_rates}
