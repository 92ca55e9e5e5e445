"""Encoder and decoder: where they start, what they see, and that unrolling is stepping."""

from __future__ import annotations

import torch

from npmp.skills.nets import Decoder, Encoder, NetConfig
from npmp.skills.prior import AR1, prior_std

NET = NetConfig(latent_dim=6, encoder_width=32, decoder_width=16, lstm_width=12)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_encoder_starts_at_the_prior() -> None:
    torch.manual_seed(0)
    z = randn(100, 32)
    mu, sigma = deviation = Encoder(20, NetConfig(), prior_std(0.95))(randn(100, 20), z)
    assert mu.abs().max() < 0.05
    torch.testing.assert_close(sigma, torch.full_like(sigma, prior_std(0.95)), rtol=0.05, atol=0)
    assert (
        AR1(32, 0.95).kl_of_deviation(deviation, z, z).sum(-1).max() < 0.1
    )  # nats over 32 dimensions


def test_the_decoder_starts_at_the_home_pose() -> None:
    torch.manual_seed(0)
    decoder = Decoder(9, 12, NET)
    action, _ = decoder(randn(50, 6), randn(50, 9), decoder.initial_state(50))
    assert action.shape == (50, 12) and action.abs().max() < 0.1


def test_the_latent_reaches_the_action_but_not_the_memory() -> None:
    """Branch 1 sees proprioception only: commands must not be hidden in the memory."""
    torch.manual_seed(0)
    decoder, x = Decoder(9, 12, NET), randn(5, 9)
    a, memory_a = decoder(randn(5, 6, seed=1), x, decoder.initial_state(5))
    b, memory_b = decoder(randn(5, 6, seed=2), x, decoder.initial_state(5))
    assert not torch.allclose(a, b, atol=1e-7)
    for one, other in zip(memory_a, memory_b, strict=True):
        assert torch.equal(one, other)


def test_the_lstm_is_torchs_over_a_whole_sequence() -> None:
    """Step by step with a cell equals nn.LSTM unrolled at once on the same weights."""
    torch.manual_seed(0)
    decoder, steps = Decoder(9, 12, NET), 6
    whole = torch.nn.LSTM(16, 12)
    whole.load_state_dict({f"{k}_l0": v for k, v in decoder.lstm.state_dict().items()})
    x = randn(steps, 2, 9)
    state = decoder.initial_state(2)
    hidden = []
    for t in range(steps):
        _, state = decoder(torch.zeros(2, 6), x[t], state)
        hidden.append(state.hidden)
    expected, _ = whole(decoder.branch1(decoder.norm(x)))
    torch.testing.assert_close(torch.stack(hidden), expected)
