"""SentencePiece BPE, rebuilt from pieces and scores.

SentencePiece joins, again and again, the two neighbours whose concatenation is the piece with the highest score
(leftmost first where scores are equal). `tokenizers` joins by a ranked list of pairs instead, so every way of cutting
a piece into two pieces becomes a pair, ranked by the score of the piece it makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.extras import require

SPACE = "▁"


def merges_from_scores(
    ids: Mapping[str, int], scores: Sequence[float], mergeable: Sequence[bool]
) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best first.

    Args:
        ids: piece → token id.
        scores: log-probability-like score of each id; higher is joined earlier.
        mergeable: whether the id may be made by joining (control and byte pieces may not).
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in ids.items():
        if not mergeable[token_id]:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], token_id, -cut, left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def sentencepiece_backend(
    ids: Mapping[str, int],
    scores: Sequence[float],
    mergeable: Sequence[bool],
    *,
    unknown_token: str | None,
    adds_space_prefix: bool,
) -> Any:
    """Build a `tokenizers.Tokenizer` for a SentencePiece BPE vocabulary with byte fallback."""
    tokenizers = require("tokenizers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=dict(ids),
            merges=merges_from_scores(ids, scores, mergeable),
            unk_token=unknown_token,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    steps = [normalizers.Prepend(SPACE)] if adds_space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    decoder_steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space_prefix:
        decoder_steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(decoder_steps)
    return backend
