"""What int8 costs on the bundled model, against exact arithmetic."""

from __future__ import annotations

import math

import pytest

from bench.quality import chat_prompts, compare_models, interval
from headway.executors.torch import LoadedModel
from headway.text import Tokenizer


@pytest.mark.slow
def test_the_bundled_model_keeps_its_quality(bundled: LoadedModel, bundled_int8: LoadedModel) -> None:
    """20 chat prompts of 64 tokens: top-1 agreement, divergence and perplexity of the replies."""
    prompts = chat_prompts(Tokenizer.from_gguf(bundled.path), 20)
    results = compare_models(bundled, bundled_int8, prompts, 64)
    top1 = [result.top1 for result in results]
    assert sum(top1) / len(top1) >= 0.97 or interval(top1)[1] >= 0.97
    assert sum(result.kl for result in results) / len(results) <= 0.005
    exact, ours = (sum(getattr(r, name) for r in results) / len(results) for name in ("exact_loss", "loss"))
    assert abs(math.exp(ours - exact) - 1) < 0.01
