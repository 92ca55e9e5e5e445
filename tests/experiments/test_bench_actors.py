"""`npmp bench actors`: its queue against what follows by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npmp.experiments.bench_actors import Costs, modelled

COSTS = Costs(steps=1000, collect_s=1.0, learn_s=0.0, batch_bytes=2_000_000, weights_bytes=1_000_000)


def test_a_learner_that_costs_nothing_never_holds_anyone_up() -> None:
    one, many = (modelled(COSTS, count, jitter=0.0) for count in (1, 64))
    assert one["steps_per_s"] == 1000 and one["staleness"] == 1.0 and one["learner_busy"] == 0.0
    assert many["steps_per_s"] == pytest.approx(64_000, rel=0.01)
    assert many["received_mb_per_s"] == pytest.approx(128.0, rel=0.01) and 1.0 <= many["staleness"] <= 2.0


def test_a_slow_learner_is_the_limit() -> None:
    """Half a second for each batch: two collectors keep it busy, more only wait; what it learns from stays young."""
    slow = replace(COSTS, learn_s=0.5)
    for count in (2, 16, 1000):
        found = modelled(slow, count, jitter=0.0)
        assert found["learner_busy"] > 0.99 and found["steps_per_s"] == pytest.approx(2000, rel=0.02)
        assert found["staleness"] == pytest.approx(2.0, abs=0.1)
    alone = modelled(slow, 1, jitter=0.0)
    assert alone["steps_per_s"] == pytest.approx(1000, rel=0.02) and alone["learner_busy"] == pytest.approx(
        0.5, abs=0.02
    )
