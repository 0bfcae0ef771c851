"""Everything between token ids and text. Needs the `torch` extra; its packages are imported on first use."""

from __future__ import annotations

from headway.text.chat import ChatTemplate
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "Tokenizer"]
