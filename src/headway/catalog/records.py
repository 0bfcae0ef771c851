"""The catalogue's own format for a model, and how it is read.

One object a model::

    {"id": "openai/gpt-oss-20b", "num_layers": 24, "layers": "sliding/moe full/moe",
     "mixers": {"sliding": {"num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "window": 128}, "full": {…}},
     "ffns": {"moe": {"num_experts": 32, "experts_per_token": 4, "intermediate_size": 2880}}, …, "source": "…"}

`layers` names a mixer and a feed-forward part for each layer (`-`: none); `3*a/b` stands for three in a row, and a list
shorter than `num_layers` repeats. What can be computed (parameters, bytes a token) is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.catalog.architecture import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    ModelArchitecture,
    StateSpace,
)
from headway.catalog.quantization import Quantization, named_quantization


def read_record(record: Mapping[str, Any]) -> ModelArchitecture:
    """One catalogue object → ModelArchitecture. The file is ours, so a mistake in it is an error of ours."""
    mixers = {name: _mixer(facts) for name, facts in record.get("mixers", {}).items()}
    ffns = {name: _ffn(facts) for name, facts in record.get("ffns", {}).items()}
    return ModelArchitecture(
        id=record["id"],
        layers=_layers(record["layers"], record["num_layers"], mixers, ffns),
        hidden_size=record["hidden_size"],
        vocab_size=record["vocab_size"],
        tie_word_embeddings=record.get("tie_word_embeddings", False),
        dtype=record.get("dtype", "bfloat16"),
        max_model_len=record.get("max_model_len"),
        quantization=_quantization(record.get("quantization")),
        architecture=record.get("architecture"),
        vision_params=record.get("vision_params", 0),
        num_mtp_layers=record.get("num_mtp_layers", 0),
        num_kv_shared_layers=record.get("num_kv_shared_layers", 0),
        extra_params=record.get("extra_params", 0),
        num_residual_streams=record.get("num_residual_streams", 1),
        source=record["source"],
        notes=tuple(record.get("notes", ())),
    )


def _layers(
    text: str, num_layers: int, mixers: Mapping[str, Mixer], ffns: Mapping[str, FeedForward]
) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for word in text.split():
        count, _, names = word.rpartition("*")
        mixer, ffn = names.split("/")
        layer = Layer(None if mixer == "-" else mixers[mixer], None if ffn == "-" else ffns[ffn])
        layers += [layer] * int(count or 1)
    repeats = -(-num_layers // len(layers))
    return tuple((layers * repeats)[:num_layers])


def _mixer(facts: Mapping[str, Any]) -> Mixer:
    if "kv_lora_rank" in facts:
        return LatentAttention(**facts)
    if "conv_kernel" in facts:
        return StateSpace(**facts)
    if "ratio" in facts:
        return CompressedAttention(**facts)
    return Attention(**{"v_head_dim": facts["head_dim"], **facts})


def _ffn(facts: Mapping[str, Any]) -> FeedForward:
    return ExpertFeedForward(**facts) if "num_experts" in facts else DenseFeedForward(**facts)


def _quantization(value: str | Mapping[str, Any] | None) -> Quantization | None:
    if value is None:
        return None
    if isinstance(value, str):
        if value == "mixed":
            return Quantization("mixed", 0.0, (), is_modelled=False)
        return named_quantization(value)
    facts = dict(value)
    part_bits = tuple(sorted(facts.pop("part_bits", {}).items()))
    return Quantization(facts.pop("method"), facts.pop("bits"), tuple(facts.pop("parts")), part_bits=part_bits, **facts)
