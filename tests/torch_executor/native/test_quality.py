"""What int8 costs on the bundled model, against exact arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from bench.peers.judging import Item, Place
from bench.quality import chat_prompts, compare, compare_models, compare_places, interval
from headway.executors.torch import LoadedModel
from headway.text import Tokenizer


def _predictions(seed: int) -> torch.Tensor:
    return torch.log_softmax(torch.randn(5, 40, generator=torch.Generator().manual_seed(seed)).double() * 3, dim=-1)


def test_a_judge_that_tells_all_is_compared_like_logits() -> None:
    """Of fewer tokens the divergence is less, never more, and all else the same."""
    exact, other, item = _predictions(0), _predictions(1), Item([1], [3, 7, 0, 39, 12])
    whole = compare(exact, other, item)
    for count in (40, 10, 1):
        values, ids = other.topk(count)
        own = other.gather(1, torch.tensor(item.continuation)[:, None])[:, 0]
        places = [Place(*place) for place in zip(ids.tolist(), values.tolist(), own.tolist(), strict=True)]
        told = compare_places(exact, places, item)
        if count == 40:
            assert told.kl == pytest.approx(whole.kl, abs=1e-6)
        assert -1e-9 <= told.kl <= whole.kl + 1e-6
        assert (told.top1, told.exact_loss) == (whole.top1, whole.exact_loss)
        assert told.loss == pytest.approx(whole.loss)


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
