"""How much load a deployment carries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from headway.cli.simulate import simulate as simulate_command
from headway.errors import ConfigError
from headway.executors.simulated.constant import ConstantOracle
from headway.report.slo import Slo
from headway.simulation.capacity import LoadLimit, Saturation, highest_load, saturation
from headway.simulation.run import simulate
from headway.simulation.workload_options import WorkloadOptions
from tests.simulation.support import make_deployment

STEPS = ConstantOracle(prefill_us=100.0, decode_ms=20.0, decode_token_us=500.0)
DEPLOYMENT = make_deployment(seats=32, budget=2048, blocks=4000, oracle=STEPS)
OPEN = WorkloadOptions(num_prompts=400, request_rate=1.0, prompt_tokens="256", output_tokens="100")
CLOSED = WorkloadOptions(num_prompts=100, concurrency=1, prompt_tokens="256", output_tokens="100")


class TestSaturation:
    """vLLM issue 3096: 2.3 requests/s are completed, and 3 or 200 are offered; 1,000 in all."""

    def test_its_arithmetic(self) -> None:
        found = Saturation(2.3, 460.0)
        assert found.utilisation(3.0) == pytest.approx(1.304, abs=1e-3)
        assert found.utilisation(200.0) == pytest.approx(87.0, abs=0.1)
        assert found.queue_growth_per_s(3.0) == pytest.approx(0.7)
        assert found.queue_growth_per_s(2.0) == 0.0
        assert [found.num_replicas(rate) for rate in (0.1, 2.3, 3.0, 4.6, 4.7)] == [1, 1, 2, 2, 3]

    def test_a_full_batch_decides_it(self) -> None:
        """32 seats: a hundred steps of 36 ms and 0.82 s of prompts for each 32 requests, but for the first and last."""
        found = saturation(DEPLOYMENT, OPEN)
        assert found.requests_per_s == pytest.approx(32 / (3.6 + 0.82), rel=0.1)
        assert found.output_tokens_per_s == pytest.approx(100 * found.requests_per_s)

    def test_conversations_are_not_bounded_by_the_time_to_think(self) -> None:
        """A few of them, minutes apart: turns come as they are answered."""
        talks = replace(OPEN, num_prompts=40, turns=4, think_time_s=100.0, output_tokens="20")
        found = saturation(DEPLOYMENT, talks)
        assert found.requests_per_s > 40 / 100.0 and found.offered == "a conversation on every seat"
        assert saturation(DEPLOYMENT, replace(talks, think_time_s=1.0)) == found
        assert saturation(DEPLOYMENT, replace(talks, request_rate=None, concurrency=2)) == found

    def test_where_nothing_is_completed_there_is_none(self) -> None:
        too_long = replace(OPEN, prompt_tokens="100000", skip_too_long=True)
        with pytest.raises(ConfigError, match="No request is completed"):
            saturation(DEPLOYMENT, too_long)


class TestHighestLoad:
    """Within objectives."""

    def test_a_longer_bound_carries_more(self) -> None:
        """Up to the saturated throughput, whatever the bound."""
        found = [highest_load(DEPLOYMENT, OPEN, Slo(ttft_ms=bound)) for bound in (150.0, 500.0, 1e6)]
        loads = [limit.load for limit in found]
        assert 0.0 < loads[0] < loads[1] <= loads[2] == saturation(DEPLOYMENT, OPEN).requests_per_s
        assert [limit.is_saturated for limit in found] == [False, False, True]
        assert all(limit.share >= 0.99 for limit in found)

    def test_just_above_it_the_objectives_fail(self) -> None:
        slo = Slo(ttft_ms=500.0)
        limit = highest_load(DEPLOYMENT, OPEN, slo)
        beyond, _ = replace(OPEN, request_rate=1.1 * limit.load).open()
        summary = simulate(DEPLOYMENT, beyond, slo=slo).summary
        assert (summary["request_goodput"] or 0.0) < 0.99 * (summary["request_throughput"] or 0.0)

    def test_clients(self) -> None:
        """A decode step of n takes 20 + n / 2 ms, and prompts of others come between: fewer than 20 stay below 30."""
        limit = highest_load(DEPLOYMENT, CLOSED, Slo(tpot_ms=30.0))
        assert limit.load == int(limit.load) and 8 <= limit.load < 20
        everybody = highest_load(DEPLOYMENT, CLOSED, Slo(tpot_ms=500.0))
        assert (everybody.load, everybody.is_saturated) == (32, True)

    def test_conversations_are_as_many_as_the_rate_needs(self) -> None:
        """Few of them spread their turns over the time to think, and come at no such rate."""
        talks = replace(OPEN, num_prompts=20, turns=4, think_time_s=5.0)
        limit = highest_load(DEPLOYMENT, talks, Slo(ttft_ms=500.0))
        assert limit.load < saturation(DEPLOYMENT, talks).requests_per_s
        assert limit.summary["request_throughput"] == pytest.approx(limit.load, rel=0.4)

    def test_clients_that_have_one_request_each_are_judged_by_it(self, tmp_path: Path) -> None:
        """A trace of a single row: all that is sent comes first."""
        trace = tmp_path / "one.csv"
        trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,256,100\n", encoding="utf-8")
        found = highest_load(DEPLOYMENT, WorkloadOptions(trace=str(trace), concurrency=1), Slo(tpot_ms=500.0))
        assert found.load == 32 and found.share == 1.0

    def test_nobody_can_be_served_within_a_step(self) -> None:
        """A bound below the time of a single decode step."""
        for workload in (OPEN, CLOSED):
            limit = highest_load(DEPLOYMENT, workload, Slo(tpot_ms=15.0))
            assert limit.load == 0 and limit.num_replicas(5.0) is None

    def test_replicas(self) -> None:
        limit = LoadLimit(2.0, 1.0, False, {})
        assert [limit.num_replicas(load) for load in (0.5, 2.0, 2.1, 9.0)] == [1, 1, 2, 5]

    def test_what_makes_no_sense_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="objectives"):
            highest_load(DEPLOYMENT, OPEN, Slo())
        with pytest.raises(ConfigError, match="share"):
            highest_load(DEPLOYMENT, OPEN, Slo(ttft_ms=1.0), share=1.5)
        with pytest.raises(ConfigError, match="kind of clients"):
            highest_load(DEPLOYMENT, WorkloadOptions(clients="2x10/10"), Slo(ttft_ms=1.0))


class TestCommand:
    """`headway simulate --capacity`."""

    ARGUMENTS = (
        *("--latency", "constant:prefill_us=100,decode_ms=20,decode_token_us=500", "--num-gpu-blocks-override", "4000"),
        *("--max-model-len", "2048", "--max-num-seqs", "32", "--num-prompts", "200", "--prompt-tokens", "256"),
        *("--output-tokens", "100", "--capacity"),
    )

    def test_an_overload(self, tmp_path: Path) -> None:
        """Half as much again as the capacity: a queue grows by that, and two replicas are needed at least."""
        path = tmp_path / "row.json"
        arguments = [*self.ARGUMENTS, "--request-rate", "10", "--slo", "ttft_ms=500", "--json", str(path)]
        result = CliRunner().invoke(simulate_command, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        (row,) = json.loads(path.read_text())
        found = row["capacity"]
        assert found["utilisation"] == pytest.approx(10 / found["saturated_requests_per_s"])
        assert found["queue_growth_per_s"] == pytest.approx(10 - found["saturated_requests_per_s"])
        assert (found["min_replicas"], found["num_gpus_per_replica"]) == (2, 1)
        assert 0 < found["slo_load"] <= found["saturated_requests_per_s"] and found["slo_replicas"] >= 2
        assert "a queue grows by" in result.output and "within objectives" in result.output

    def test_clients(self) -> None:
        """Without objectives there is only what is completed at most."""
        result = CliRunner().invoke(simulate_command, [*self.ARGUMENTS, "--concurrency", "4"])
        assert result.exit_code == 0 and "with all requests at once" in result.output
        assert "within objectives" not in result.output

    def test_several_kinds_of_clients_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="one kind of clients"):
            CliRunner().invoke(simulate_command, [*self.ARGUMENTS, "--clients", "2x10/10"], catch_exceptions=False)
