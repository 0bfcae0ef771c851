"""Settings at the edge of what is allowed choose some token of the vocabulary; none can end the engine's step."""

from __future__ import annotations

import pytest
import torch

from headway.core.sampling import SamplingParams
from headway.executors.torch.sampler import SamplingRow, sample

VOCABULARY = 50


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 1e-300, "temperature": 0.0},
        {"temperature": 1e-30},
        {"temperature": 1e-5, "repetition_penalty": 1e-38},
        {"allowed_token_ids": frozenset({7}), "min_tokens": 3, "stop_token_ids": frozenset({7})},
        {"logit_bias": {1: -100.0, 2: 100.0}, "top_p": 1e-12, "min_p": 1.0},
    ],
)
def test_the_choice_is_always_in_the_vocabulary(settings: dict[str, object]) -> None:
    """A penalty that overflows, or settings that rule out every token."""
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    row = SamplingRow(params, [1, 2, 3, 7], 2, params.stop_token_ids, seed=3)
    plain = SamplingRow(SamplingParams(temperature=0.0), [1, 2, 3], 2, frozenset(), seed=3)
    logits = torch.linspace(-8.0, 8.0, VOCABULARY).repeat(2, 1)
    chosen = sample(logits, [row, plain])
    assert 0 <= chosen[0].token_id < VOCABULARY
    assert chosen[1].token_id == VOCABULARY - 1
