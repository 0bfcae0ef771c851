"""Batching policies from a file of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.policies import blaming, make_policy
from headway.errors import ConfigError
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, simulate
from headway.workload import TraceRequest

EXAMPLE = Path(__file__).parents[2] / "examples" / "shortest_prompt_first.py"


def _order(policy: str, *, fast_forward: bool = True) -> list[str]:
    """Ids in the order of their first tokens: three prompts that come while a fourth has the only seat."""
    deployment = DeploymentOptions(
        latency="constant:prefill_us=10,decode_ms=5",
        num_gpu_blocks_override=600,
        max_model_len=4096,
        max_num_seqs=1,
        policy=policy,
    ).resolve()
    lengths = {"first": 100, "long": 3000, "short": 10, "middle": 500}
    requests = [TraceRequest(index * 1e-4, length, 20, name) for index, (name, length) in enumerate(lengths.items())]
    result = simulate(deployment.deployment, SimulatedWorkload(requests), keep_records=True, fast_forward=fast_forward)
    return [record.request_id for record in sorted(result.records, key=lambda record: record.first_token_at)]


@pytest.mark.parametrize("fast_forward", [False, True])
def test_the_example_serves_short_prompts_first(fast_forward: bool) -> None:
    assert _order("chunked", fast_forward=fast_forward) == ["first", "long", "short", "middle"]
    assert _order(str(EXAMPLE), fast_forward=fast_forward) == ["first", "short", "middle", "long"]


def test_a_policy_from_a_file_is_stepped_unless_it_allows_fast_forward(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from headway.core.policies import ChunkedPolicy\nclass A(ChunkedPolicy): pass\n")
    assert not make_policy(str(path)).may_fast_forward
    assert make_policy("chunked").may_fast_forward and make_policy(f"{EXAMPLE}:ShortestPromptFirst").may_fast_forward


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("x = 1", "", "has 0 batching policies"),
        ("from headway.core.policies import ChunkedPolicy as C\nclass A(C): pass\nclass B(C): pass", "", "has 2"),
        ("from headway.core.policies import ChunkedPolicy as C\nclass A(C): pass", ":B", "called B"),
        ("1 / 0", "", "ZeroDivisionError"),
    ],
)
def test_a_file_without_one_policy_is_refused(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_policy(f"{path}{place}")


def test_a_missing_file_or_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no file nothing\.py"):
        make_policy("nothing.py")
    with pytest.raises(ConfigError, match=r"FILE\.py:CLASS"):
        make_policy("nothing")


def test_what_a_policy_of_ones_own_raises_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from headway.core.policies import ChunkedPolicy\n"
        "class A(ChunkedPolicy):\n"
        "    def queue(self, usual):\n"
        "        return usual.nothing\n"
    )
    with pytest.raises(ConfigError, match=r"AttributeError.*mine\.py, line 4"), blaming(str(path)):
        _order(str(path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"AttributeError.*\(mine\.py, line 4\)") as caught, blaming("mine.py"):
        _order("mine.py")
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(ZeroDivisionError), blaming(str(path)):
        raise ZeroDivisionError("not the policy's fault")
