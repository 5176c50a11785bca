"""Activations that go to the host and come back."""

import cases_offload as cases
import pytest

pytestmark = pytest.mark.ranks


def test_activations_are_let_go(on_gpus):
    """Must catch: record_stream; activations that are held until backward; a host that waits."""
    on_gpus(1, cases.activations_are_let_go).is_right()
