"""Contrast of two colours as WCAG 2 defines it."""


def linear(colour: str) -> list[float]:
    """Red, green and blue of linear RGB, of `#rrggbb` or, as a browser says it, `rgb(r, g, b)`."""
    if colour.startswith("#"):
        channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        channels = [int(channel) for channel in colour[4:-1].split(",")]
    return [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in channels)
    ]


def contrast(one: str, other: str) -> float:
    """1 to 21."""
    dark, light = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour)))
        for colour in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)
