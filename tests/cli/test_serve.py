"""What `headway serve` prints at its start, and what it refuses before loading anything."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli.serve import banner, run
from headway.cli.serve_sim import simulated_banner
from headway.config import EngineOptions, ModelFacts, ServerOptions, resolve
from headway.errors import ConfigError
from headway.simulation.options import DeploymentOptions

CONFIG = resolve(EngineOptions(num_blocks=257), ModelFacts(max_model_len=2048, kv_bytes_per_token=1024))


def test_the_banner_gives_the_pool_in_tokens_and_in_full_length_sequences() -> None:
    text = banner("m", CONFIG, "http://127.0.0.1:1", needs_key=False)
    assert "4096 tokens in 256 blocks of 16 (given): 2.0 sequences of full length at once" in text
    assert "up to 2048 tokens a sequence (the model's own limit)" in text
    assert "http://127.0.0.1:1\n" in text


def test_the_banners_call_a_policy_of_ones_own_by_its_name(tmp_path: Path) -> None:
    """As bench does, not by its file."""
    path = tmp_path / "mine.py"
    path.write_text("from headway.core.policies import ChunkedPolicy\nclass A(ChunkedPolicy):\n    name = 'my own'\n")
    simulated = DeploymentOptions(
        latency="constant:decode_ms=1", num_gpu_blocks_override=50, max_model_len=512, policy=str(path)
    ).resolve()
    texts = (
        banner("m", replace(CONFIG, policy=str(path)), "URL", needs_key=False),
        simulated_banner(simulated, "m", "URL"),
    )
    for text in texts:
        assert re.search(r"^scheduler: +my own, ", text, re.MULTILINE) and "mine.py" not in text


@pytest.mark.parametrize("name", ["m", "it's a 'model'", '"quoted" $HOME'])
def test_the_line_to_try_survives_a_shell(name: str) -> None:
    line = banner(name, CONFIG, "http://127.0.0.1:1", needs_key=True).splitlines()[-1]
    words = shlex.split(line.removeprefix("try:"))
    assert words[:2] == ["curl", "http://127.0.0.1:1/v1/chat/completions"]
    assert "Authorization: Bearer $HEADWAY_API_KEY" in words
    assert json.loads(words[-1])["model"] == name


@pytest.mark.parametrize("bad", [{"api_key": ""}, {"max_queue": 0}, {"port": 70000}])
def test_bad_settings_are_refused_before_the_model_is_loaded(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        run("/no/such/model", EngineOptions(), ServerOptions(**bad))  # type: ignore[arg-type]
