"""The labs' training data: a public-domain text, a tokenizer that knows its characters, random
windows of it.

Letters: N tokens in the text, B windows in a batch, S tokens in a window.
"""

from collections.abc import Iterator
from importlib import resources

import torch
from torch import Tensor

from .gpt_checks import whole_number


class UnknownToken(ValueError):
    """A character, or a number, that the tokenizer's alphabet does not have."""


def load_text() -> str:
    """Alice's Adventures in Wonderland (Lewis Carroll, 1865). Its origin is told in
    shardlab/data/README.md."""
    return resources.files("shardlab").joinpath("data", "alice.txt").read_text(encoding="ascii")


class CharTokenizer:
    """One token per character. The alphabet is the sorted set of the characters of `text`: equal
    texts number alike."""

    def __init__(self, text: str):
        self.alphabet = sorted(set(text))
        self.numbers = {character: number for number, character in enumerate(self.alphabet)}

    @property
    def vocabulary(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """Tokens [N] of `text`; UnknownToken for a character that is not in the alphabet."""
        try:
            return torch.tensor([self.numbers[character] for character in text], dtype=torch.int64)
        except KeyError as error:
            raise UnknownToken(
                f"{error.args[0]!r} is not one of the {self.vocabulary} characters of the text "
                "this tokenizer was made from."
            ) from None

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [N]; UnknownToken for a number outside 0 ... vocabulary - 1."""
        numbers = tokens.tolist()
        for number in numbers:
            if not 0 <= number < self.vocabulary:
                raise UnknownToken(
                    f"token {number} is not one of 0 ... {self.vocabulary - 1}, the tokens there"
                    " are."
                )
        return "".join(self.alphabet[number] for number in numbers)


def batches(
    tokens: Tensor, batch: int, sequence: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), both [B, S] int64: random windows of tokens [N], targets one token
    further on.

    The generator alone decides which windows come, so two loops with equally seeded generators see
    the same batches.
    """
    batch = whole_number("batch", batch, 1, None)
    sequence = whole_number("sequence", sequence, 1, len(tokens) - 1)

    def windows():
        places = tokens.unfold(0, sequence + 1, 1)  # [N - S, S + 1], a view: every window there is
        while True:
            chosen = places[torch.randint(len(places), (batch,), generator=generator)]  # [B, S + 1]
            yield chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()

    return windows()


def vocabulary_of_text() -> int:
    """How many different characters the text has."""
    return CharTokenizer(load_text()).vocabulary


def windows_of_text(batch: int, sequence: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets) as batches() gives them, from the whole text: the same for equal
    seeds."""
    text = load_text()
    tokens = CharTokenizer(text).encode(text)
    return batches(tokens, batch, sequence, torch.Generator().manual_seed(seed))
