"""The explorers of the book by name, as data (spec.py): card.py writes
them for pages (bookkit/explorer.py) and notebooks (widgets.py), and static/explorer.js moves them.
A topic's `explorer.py` defines them; this module finds them.

    EXPLORERS["does-it-fit"]
"""

from types import MappingProxyType

from coursekit import topics

from .spec import Explorer

EXPLORERS = MappingProxyType(
    {
        found.name: found
        for module in topics.modules("explorer")
        for found in vars(module).values()
        if isinstance(found, Explorer)
    }
)
