"""Published models: the values of each config.json that decide its size, written down by hand on
22 November 2026, and the count of parameters that others publish, with where it was read."""

import json
from pathlib import Path

PUBLISHED = {
    model["name"]: model
    for model in json.loads(Path(__file__).with_name("published_models.json").read_text("utf-8"))
}
