"""Loss formulas against numbers worked out by hand, and against poisoned placeholders."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from openforgerl.trainers.losses import join, nll_loss, policy_loss, policy_metrics, policy_terms  # noqa: E402

Tensor = torch.Tensor


def one(ratio: float, advantage: float, *, importance: float = 1.0, **settings: float) -> tuple[float, float]:
    """(loss, d loss / d current) of a single token."""
    proximal = torch.tensor([-2.0])
    current = (proximal + math.log(ratio)).requires_grad_()
    terms = policy_terms(
        current=current,
        proximal=proximal,
        behaviour=proximal - math.log(importance),
        advantage=torch.tensor([advantage]),
        mask=torch.tensor([True]),
        **settings,
    )
    loss = policy_loss(terms, torch.ones(1), 1.0)
    loss.backward()
    return loss.item(), current.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # clipped above: 1.2 * 2
        (0.5, 2.0, -1.0, -1.0),  # worse than before: no clip holds it back
        (0.5, -2.0, 1.6, 0.0),  # clipped below: 0.8 * -2
        (1.5, -2.0, 3.0, 3.0),
        (1.3, 0.0, 0.0, 0.0),
    ],
)
def test_the_clip_takes_the_gradient_only_from_moves_that_went_far_enough(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert one(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-5)


def test_the_clip_may_be_asymmetric() -> None:
    assert one(1.25, 1.0, clip_high=0.28) == pytest.approx((-1.25, -1.25), abs=1e-5)
    assert one(1.25, 1.0, clip_high=0.2) == pytest.approx((-1.2, 0.0), abs=1e-5)
    assert one(0.75, -1.0, clip_low=0.3) == pytest.approx((0.75, 0.75), abs=1e-5)


@pytest.mark.parametrize(("importance", "weight"), [(1.0, 1.0), (1.5, 1.5), (1e3, 2.0), (1e-3, 1e-3)])
def test_proximal_over_behaviour_weighs_up_to_its_cap(importance: float, weight: float) -> None:
    assert one(1.0, 1.0, importance=importance) == pytest.approx((-weight, -weight), rel=1e-4)


def test_no_gradient_reaches_the_proximal_policy_or_the_importance_weight() -> None:
    current = torch.tensor([-1.0], requires_grad=True)
    terms = policy_terms(
        current=current,
        proximal=current,
        behaviour=torch.tensor([-1.5]),
        advantage=torch.tensor([1.0]),
        mask=torch.tensor([True]),
    )
    policy_loss(terms, torch.ones(1), 1.0).backward()
    assert current.grad.item() == pytest.approx(-math.exp(0.5), rel=1e-6)


def test_placeholders_enter_no_sum() -> None:
    mask = torch.tensor([False, True, False, True])
    good = torch.tensor([0.0, -1.0, 0.0, -2.0])

    def loss(filler: float) -> tuple[float, Tensor, dict[str, float]]:
        values = torch.where(mask, good, torch.tensor(filler))
        current = values.clone().requires_grad_()
        terms = policy_terms(current=current, proximal=values, behaviour=values - 0.1, advantage=values, mask=mask)
        total = policy_loss(terms, torch.ones(2), 2.0)
        total.backward()
        return total.item(), current.grad, policy_metrics(terms, 2.0)

    clean, gradient, metrics = loss(0.0)
    for filler in (math.nan, math.inf, 1.0):
        other, other_gradient, other_metrics = loss(filler)
        assert (other, other_metrics) == (clean, metrics)
        assert torch.equal(other_gradient, gradient)
        assert other_gradient[~mask].abs().sum() == 0


def test_nll_is_the_mean_over_masked_in_tokens_only() -> None:
    logprobs = torch.tensor([math.nan, -1.0, -3.0])
    assert nll_loss(logprobs, torch.tensor([False, True, True]), 2.0).item() == 2.0


def test_micro_batches_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    values = {name: torch.randn(50) for name in ("current", "proximal", "behaviour", "advantage")}
    mask, weight = torch.rand(50) < 0.6, torch.rand(50)
    whole = policy_terms(**values, mask=mask)
    parts = [
        policy_terms(**{name: value[part] for name, value in values.items()}, mask=mask[part])
        for part in (slice(0, 13), slice(13, 14), slice(14, 50))
    ]
    weights = [weight[part][mask[part]] for part in (slice(0, 13), slice(13, 14), slice(14, 50))]
    total = sum(policy_loss(part, w, 17.0) for part, w in zip(parts, weights, strict=True))
    torch.testing.assert_close(total, policy_loss(whole, weight[mask], 17.0))
    assert policy_metrics(join(parts), 2.0) == policy_metrics(whole, 2.0)


def test_metrics_by_hand() -> None:
    terms = policy_terms(
        current=torch.log(torch.tensor([0.5, 1.5, 1.0, 1.5])),
        proximal=torch.zeros(4),
        behaviour=torch.log(torch.tensor([1.0, 1.0, 0.25, 1.0])),
        advantage=torch.tensor([-1.0, -1.0, 1.0, 1.0]),
        mask=torch.ones(4, dtype=torch.bool),
    )
    metrics = policy_metrics(terms, 2.0)
    assert metrics["clip_fraction"] == 0.5
    assert metrics["ratio_mean"] == pytest.approx(4.5 / 4)
    assert metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["importance_max"] == pytest.approx(4.0)
    assert metrics["importance_truncated"] == 0.25
    assert metrics["kl_behaviour"] == pytest.approx((4 - 1 - math.log(4)) / 4)
