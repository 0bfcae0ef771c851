"""How text is cut into words before byte-level BPE, by the name a GGUF file gives (`tokenizer.ggml.pre`).

The merges of a vocabulary were learned inside such words, so the same merges with another split give other tokens.
Each split below is the one in the `tokenizer.json` of the model family it is named after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.errors import ModelLoadError
from headway.extras import require

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = "|".join([_CONTRACTION, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _SPACE])
_QWEN2 = "|".join([_CONTRACTION, _WORD, r"\p{N}", _PUNCTUATION, _SPACE])

# Tekken ends a word where lower case is followed by upper case, and lets "/" follow punctuation.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = "|".join(
    [
        f"{_LEAD}{_UPPER}*{_LOWER}+",
        f"{_LEAD}{_UPPER}+{_LOWER}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACE,
    ]
)


@dataclass(frozen=True, slots=True)
class WordSplit:
    """One way of preparing text for byte-level BPE.

    Args:
        pattern: what counts as a word; None is GPT-2's own pattern, which `tokenizers` has built in.
        single_digits: every digit is a word of its own, cut out before `pattern` applies.
        nfc: text is normalised to Unicode NFC first.
        ignore_merges: a word that is in the vocabulary becomes that token, whatever the merges say.
        adds_bos: what to do where the file does not say whether a text starts with the BOS token.
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> Any:
        """The split as a `tokenizers` pre-tokenizer, ending in the byte-level alphabet."""
        tokenizers = require("tokenizers")
        pre = tokenizers.pre_tokenizers
        steps = [pre.Digits(individual_digits=True)] if self.single_digits else []
        if self.pattern is not None:
            steps.append(pre.Split(tokenizers.Regex(self.pattern), behavior="isolated"))
        steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return pre.Sequence(steps)


_GPT2_SPLIT = WordSplit()
_DIGITS_SPLIT = WordSplit(single_digits=True)
_LLAMA3_SPLIT = WordSplit(pattern=_LLAMA3, ignore_merges=True, adds_bos=True)
_QWEN2_SPLIT = WordSplit(pattern=_QWEN2, nfc=True)
_TEKKEN_SPLIT = WordSplit(pattern=_TEKKEN, ignore_merges=True, adds_bos=True)

WORD_SPLITS: dict[str, WordSplit] = {
    "default": _GPT2_SPLIT,
    "gpt-2": _GPT2_SPLIT,
    "smollm": _DIGITS_SPLIT,
    "starcoder": _DIGITS_SPLIT,
    "refact": _DIGITS_SPLIT,
    "codeshell": _DIGITS_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": WordSplit(pattern=_QWEN2),
    "tekken": _TEKKEN_SPLIT,
}


def word_split(name: str) -> WordSplit:
    """The split with the given GGUF name.

    Raises:
        ModelLoadError: the name is unknown; a guess would give the model tokens it never saw.
    """
    split = WORD_SPLITS.get(name)
    if split is None:
        raise ModelLoadError(
            f"The GGUF file's pre-tokenizer {name!r} is not supported (known: {', '.join(sorted(WORD_SPLITS))}).",
            hint="Put the model's tokenizer.json in the same folder; it is then used instead.",
        )
    return split
