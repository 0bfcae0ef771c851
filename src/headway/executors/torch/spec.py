"""What a decoder looks like: every number the forward pass needs, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headway.executors.torch.rotary import RopeScaling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Architecture of a Llama-like dense decoder.

    Args:
        architecture: the checkpoint's own name for it ("LlamaForCausalLM", or GGUF's "llama").
        head_dim: width of one attention head; num_heads * head_dim need not equal hidden_size.
        layer_windows: for each layer, how many tokens a query sees (itself included); None sees all before it.
        qkv_bias, output_bias: whether the attention projections carry biases.
        qk_norm: whether each query and key head passes an RMS norm before the rotation (Qwen3).
        tied_embeddings: the head is the embedding matrix.
        eos_token_ids: ids that end a sequence, in the model's own opinion.
        max_position_embeddings: longest sequence the checkpoint claims, rotary scaling included.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    layer_windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def sliding_window(self) -> int | None:
        """The window if every layer has the same one, so that older KV may be dropped; otherwise None."""
        windows = set(self.layer_windows)
        return windows.pop() if len(windows) == 1 else None

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token keeps, over all layers."""
        return 2 * self.num_layers * self.kv_size * element_bytes
