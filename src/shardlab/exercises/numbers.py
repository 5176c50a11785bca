"""A reader's number, whoever made it: 3, 3.0, NumPy's or a tensor of one element.

plain_number(np.int64(3)), plain_number(torch.tensor([3.0]))      # 3, 3.0
"""


def plain_number(value):
    """Python's number for a number of NumPy or a tensor of one element; anything else as it is."""
    if getattr(value, "shape", None) not in ((), (1,)):
        return value
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value
