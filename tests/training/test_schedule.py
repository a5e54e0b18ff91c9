"""How the learning rate rises and falls."""

import pytest

import symbayes as sb


def test_without_warming_up_it_falls_along_a_cosine():
    schedule = sb.Schedule(4, warm_up=0.0)
    assert [schedule.rate_share(epoch) for epoch in range(1, 5)] == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_while_warming_up_it_rises_to_the_same_cosine():
    cold, warm = sb.Schedule(20, warm_up=0.0), sb.Schedule(20, warm_up=0.1)
    ratios = [warm.rate_share(epoch) / cold.rate_share(epoch) for epoch in range(1, 21)]
    assert ratios == pytest.approx([1 / 3, 2 / 3] + [1] * 18)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_warming_up_takes_a_share_of_the_epochs(share):
    with pytest.raises(ValueError, match="warm_up must be a share of the epochs, at least 0 and below 1"):
        sb.Schedule(warm_up=share)
