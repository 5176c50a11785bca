"""The shipped text, the character tokenizer and the batches made from them."""

import torch

from shardlab.text import (
    CharTokenizer,
    batches,
    load_text,
    vocabulary_of_text,
    windows_of_text,
)


def test_text_is_the_book_alone():
    """Plain characters, from title to end. Must catch: a distributor's header, or an end-of-file
    byte, that came with the bytes; a file that is not packaged. (Carriage returns that a checkout
    on Windows adds are gone after reading.)"""
    text = load_text()
    assert text.lstrip().startswith("ALICE'S ADVENTURES IN WONDERLAND")
    assert text.endswith("THE END\n")
    assert len(text) == 148_410 and set(text) <= set(map(chr, range(32, 127))) | {"\n"}
    assert text.count("CHAPTER") == 12
    for word in ("Gutenberg", "EDITION", "License"):
        assert word not in text


def test_tokenizer_gives_the_text_back():
    """Must catch: an alphabet in the order of a set, which differs from run to run; characters
    numbered from 1."""
    text = load_text()
    tokenizer = CharTokenizer(text)
    tokens = tokenizer.encode(text)
    assert tokens.dtype == torch.int64 and tokens.shape == (len(text),)
    assert tokens.unique().tolist() == list(range(tokenizer.vocabulary))
    assert tokenizer.decode(tokens) == text
    assert CharTokenizer("banana").encode("ban").tolist() == [1, 0, 2]


def test_batches_are_windows_and_the_next_tokens():
    """Must catch: targets equal to inputs; a last window that never comes, or that runs past the
    text; two batches alike."""
    tokens, seen = torch.arange(100, 110), set()
    stream = batches(tokens, batch=4, sequence=7, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        inputs, targets = next(stream)
        assert inputs.shape == targets.shape == (4, 7)
        assert inputs.is_contiguous()
        assert targets.is_contiguous()
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        seen |= set(inputs[:, 0].tolist())
    assert seen == {100, 101, 102}
    inputs, targets = next(batches(tokens, batch=1, sequence=9, generator=torch.Generator()))
    assert inputs[0].tolist() == list(range(100, 109)) and targets[0, -1] == 109


def test_the_generator_decides():
    """Equal seeds, equal batches, whatever happens to PyTorch's own generator. Must catch: randint
    without the generator."""
    tokens = torch.arange(1000)
    first = batches(tokens, 2, 5, torch.Generator().manual_seed(7))
    torch.manual_seed(0)
    second = batches(tokens, 2, 5, torch.Generator().manual_seed(7))
    other = batches(tokens, 2, 5, torch.Generator().manual_seed(8))
    rows = [torch.cat([next(stream)[0] for _ in range(5)]) for stream in (first, second, other)]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert len(rows[0].unique(dim=0)) > 5


def test_windows_of_the_text():
    """Must catch: a seed that does not arrive; windows of a part of the text, or numbered by
    another alphabet than the model's."""
    text = load_text()
    tokens = CharTokenizer(text).encode(text)
    want = batches(tokens, 3, 1000, torch.Generator().manual_seed(5))
    found = windows_of_text(3, 1000, seed=5)
    for _ in range(3):
        assert all(map(torch.equal, next(found), next(want)))
    assert vocabulary_of_text() == 1 + tokens.max()
