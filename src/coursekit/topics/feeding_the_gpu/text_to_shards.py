"""From raw text to numbers, in lines that the page prints: documents, copies of them, exact and
near, and a byte-pair encoder."""

import hashlib
import re
from collections import Counter

PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s")


def documents_of(text: str) -> list[str]:
    """Paragraphs stand for documents."""
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def without_copies(documents: list[str]) -> list[str]:
    """The first of each: spaces and line breaks make no difference."""
    first = {}
    for document in documents:
        first.setdefault(hashed(" ".join(document.split())), document)
    return list(first.values())


def signature(document: str, hashes: int = 32) -> list[int]:
    """MinHash: of each hash function the smallest value over all groups of three words."""
    words = document.lower().split()
    groups = {" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))}
    return [min(hashed(f"{seed} {group}") for group in groups) for seed in range(hashes)]


def likeness(one: list[int], other: list[int]) -> float:
    """The share of groups that two documents have in common, estimated from their signatures."""
    return sum(a == b for a, b in zip(one, other)) / len(one)


# --- bytes to tokens ------------------------------------------------------------------------------


def with_pair_merged(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """The parts with each occurrence of the pair as one part."""
    found, at = [], 0
    while at < len(parts):
        both = tuple(parts[at : at + 2]) == pair
        found.append(b"".join(pair) if both else parts[at])
        at += 1 + both
    return found


def learned_merges(text: str, count: int) -> list[tuple[bytes, bytes]]:
    """The pair of neighbours that is most frequent becomes a token, again and again."""
    often = Counter(PIECE.findall(text))
    parts = {word: [bytes([byte]) for byte in word.encode()] for word in often}
    merges = []
    for _ in range(count):
        pairs = Counter()
        for word, own in parts.items():
            for pair in zip(own, own[1:]):
                pairs[pair] += often[word]
        if not pairs:
            break
        merges.append(max(pairs, key=pairs.get))
        parts = {word: with_pair_merged(own, merges[-1]) for word, own in parts.items()}
    return merges


def encoded(text: str, merges: list[tuple[bytes, bytes]]) -> list[int]:
    """Tokens: 256 bytes, then one for each merge. Each word is merged once, however often it
    comes."""
    numbers = {bytes([byte]): byte for byte in range(256)}
    numbers |= {b"".join(pair): 256 + place for place, pair in enumerate(merges)}
    known = {}
    for word in set(PIECE.findall(text)):
        parts = [bytes([byte]) for byte in word.encode()]
        for pair in merges:
            parts = with_pair_merged(parts, pair)
        known[word] = [numbers[part] for part in parts]
    return [token for word in PIECE.findall(text) for token in known[word]]


def decoded(tokens: list[int], merges: list[tuple[bytes, bytes]]) -> str:
    texts = [bytes([byte]) for byte in range(256)] + [b"".join(pair) for pair in merges]
    return b"".join(texts[token] for token in tokens).decode()
