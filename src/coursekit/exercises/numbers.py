"""A reader's number, whoever made it: 3, 3.0, NumPy's or a tensor of one element.

plain_number(np.int64(3)), plain_number(torch.tensor([3.0]))      # 3, 3.0
plain_numbers((np.int64(3), torch.tensor(3.0)))                   # (3, 3.0)
"""

import math


def plain_number(value):
    """Python's number for a number of NumPy or a tensor of one element; anything else as it is."""
    if getattr(value, "shape", None) not in ((), (1,)):
        return value
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(a, b) -> bool:
    """Whether two answers are equal, also within lists and tuples, whichever of the two they are;
    numbers are numbers, whoever made them; floats to nine digits, which tells every misconception
    apart."""
    try:
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(map(same, a, b))
        a, b = plain_number(a), plain_number(b)
        if isinstance(a, float) or isinstance(b, float):
            return is_number(a) and is_number(b) and math.isclose(a, b, rel_tol=1e-9)
        return type(a) is type(b) and bool(a == b)
    except Exception:  # a tensor of several elements, 10**5000, a list of a million lists
        return False


def plain_numbers(result):
    """The result of a reader's function with Python's numbers, also within tuples and lists."""
    if type(result) in (tuple, list):
        return type(result)(map(plain_numbers, result))
    return plain_number(result)


def ranks_in_words(ranks) -> str:
    """rank 1; ranks 0, 2."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
