"""The category of a warning about traffic between machines; it needs no torch.

    warnings.simplefilter("error", CrossesNodes)        # no tensor parallelism across nodes

Two say it before any rank starts, each with the number that it knows:
`tensor_parallel.check_plan`, the vectors that cross the links for each token, and `planner.fits`,
the time of a layer's messages inside a node and across.
"""


class CrossesNodes(UserWarning):
    """The ranks that split each layer are not on one node."""
