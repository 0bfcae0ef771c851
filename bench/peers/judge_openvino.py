"""OpenVINO on the model that its own reader makes of the GGUF file: the prompt at once, then token by token."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from bench.peers import judging


def main() -> None:
    """Judge, and write the opinion."""
    args = judging.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "model.gguf"
        copy.symlink_to(Path(args.model).resolve())
        # Its reader leaves the model that it made beside the file.
        openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
        compiled = openvino.Core().compile_model(
            str(Path(scratch) / "openvino_model.xml"), "CPU", {"INFERENCE_NUM_THREADS": args.threads}
        )
        request = compiled.create_infer_request()
        judging.save_places(args.out, [judge(request, item) for item in judging.read_items(args.items)])


def judge(request: openvino.InferRequest, item: judging.Item) -> list[judging.Place]:
    """Feed the prompt, then each token of the continuation but the last."""
    request.reset_state()
    position, places = 0, []
    steps = (item.prompt, *([token_id] for token_id in item.continuation[:-1]))
    for ids, following in zip(steps, item.continuation, strict=True):
        end = position + len(ids)
        request.infer(
            {
                "input_ids": np.array([ids], dtype=np.int64),
                "attention_mask": np.ones((1, end), dtype=np.int64),
                "position_ids": np.arange(position, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
        )
        position = end
        logits = request.get_tensor("logits").data[0, -1].astype(np.float64)
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        top = np.argsort(-logprobs)[: judging.TOP]
        places.append(judging.Place(top.tolist(), logprobs[top].tolist(), float(logprobs[following])))
    return places


if __name__ == "__main__":
    main()
