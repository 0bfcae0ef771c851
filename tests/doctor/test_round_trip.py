"""From a fault to its fix and back: a deployment is simulated with a fault, and the doctor sees what it showed.

It gets the command line, the scrapes and the log, and no more. It must name the fault, and its first fix, simulated on
the deployment itself, must remove it. Nothing of the deployment is known to it that an operator would not give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from headway.doctor.diagnose import diagnose
from headway.doctor.diagnosis import Bottleneck, Diagnosis
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.fixes.values import OUTSIDE_SETTINGS
from headway.doctor.gather import gather
from headway.doctor.rules import find_bottlenecks
from headway.simulation.options import DeploymentOptions
from tests.doctor.planted.faults import FAULTS, HEALTHY, IDLE, STALLS, Planted, Slower, refused_start, unschedulable
from tests.doctor.planted.server import Observed, Server

pytestmark = pytest.mark.slow

Folder = Callable[[], Path]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Makes a new folder at each call."""
    return lambda: tmp_path_factory.mktemp("server")


@cache
def observed(name: str) -> Observed:
    """A planted fault's run, made once."""
    return FAULTS[name].server.observe()


def evidence_of(
    seen: Observed, folder: Path, bounds: Mapping[str, float] | None = None, goal: str = "latency"
) -> Evidence:
    """What the doctor gathers from a server's command line, scrapes and log."""
    metrics, log = seen.write(folder)
    objective = Objective(bounds or {}, goal)
    return gather(seen.server.command, metrics=[metrics], logs=[log], gpu=seen.server.options.gpu, objective=objective)


def planted_evidence(name: str, seen: Observed, folder: Path) -> Evidence:
    """The same for a planted fault, with its operator's objective."""
    return evidence_of(seen, folder, FAULTS[name].bounds, FAULTS[name].goal)


def sure(found: tuple[Bottleneck, ...]) -> list[str]:
    """Kinds that are named with some confidence."""
    return [item.kind for item in found if item.confidence != "weak"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_first(name: str, folder: Folder) -> None:
    findings = find_bottlenecks(planted_evidence(name, observed(name), folder()))
    assert sure(findings.bottlenecks)[:1] == [FAULTS[name].kind], findings.bottlenecks
    assert FAULTS[name].kind not in findings.ruled_out


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "nobody_says_stop"])
def test_the_fault_is_named_on_a_machine_that_is_slower_than_its_model(name: str, folder: Folder) -> None:
    """By a fifth, and a millisecond a step. Outputs that never end take too long there to be seen at their limit."""
    seen = replace(FAULTS[name].server, disturb=Slower).observe()
    findings = find_bottlenecks(planted_evidence(name, seen, folder()))
    assert sure(findings.bottlenecks)[:1] == [FAULTS[name].kind], findings.bottlenecks


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_first_fix_removes_the_fault(name: str, folder: Folder) -> None:
    """The metric that the fault spoils gets well, and the repaired server's figures show nothing of it."""
    fault, before = FAULTS[name], observed(name)
    diagnosis = diagnose(planted_evidence(name, before, folder()))
    assert sure(diagnosis.bottlenecks)[:1] == [fault.kind]
    fix = diagnosis.fixes[0]
    assert fault.kind in fix.addresses, fix
    after = before.server.with_fix(fix).observe()
    assert improvement(fault, before, after) <= fault.improves, fix
    findings = find_bottlenecks(planted_evidence(name, after, folder()))
    assert fault.kind not in sure(findings.bottlenecks), findings.bottlenecks
    foretold = fault.foretold or fault.metric
    for effect in fix.predicted:
        if effect.metric == foretold and effect.before:
            assert (effect.after > effect.before) == foretold.endswith("throughput"), "the direction is foretold"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool_too_small", "pool_set_by_hand", "full_at_the_door", "one_long_hog"])
def test_blocks_that_run_out_are_no_load_too_high_while_memory_is_left(name: str, folder: Folder) -> None:
    findings = find_bottlenecks(planted_evidence(name, observed(name), folder()))
    assert not findings.has("offered_load_too_high"), findings.bottlenecks


def improvement(fault: Planted, before: Observed, after: Observed) -> float:
    """What is left of the spoilt metric; for a throughput, the old over the new."""
    old, new = before.summary[fault.metric], after.summary[fault.metric]
    assert old and new
    return old / new if fault.metric.endswith("throughput") else new / old


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_deployment_is_left_in_peace(name: str, folder: Folder) -> None:
    diagnosis = diagnose(evidence_of(HEALTHY[name].observe(), folder()))
    assert sure(diagnosis.bottlenecks) == ["none"], diagnosis.bottlenecks
    assert not diagnosis.fixes


def test_an_idle_deployment_is_called_idle(folder: Folder) -> None:
    diagnosis = diagnose(evidence_of(IDLE.observe(), folder()))
    assert sure(diagnosis.bottlenecks) == ["none_idle"], diagnosis.bottlenecks
    assert not diagnosis.fixes


def test_a_stall_of_the_machine_is_told_from_a_lack_of_anything(folder: Folder) -> None:
    """No setting helps, and none is advised."""
    diagnosis = diagnose(evidence_of(STALLS.server.observe(), folder()))
    assert sure(diagnosis.bottlenecks) == ["engine_stall_other"], diagnosis.bottlenecks
    assert not [fix for fix in diagnosis.fixes if fix.setting not in OUTSIDE_SETTINGS]
    assert {"kv_starvation", "waiting_queue_stall"} <= set(diagnosis.ruled_out)


def from_log(options: DeploymentOptions, log: str, folder: Path) -> Diagnosis:
    """What the doctor says of a command line and a log alone."""
    path = folder / "server.log"
    path.write_text(log)
    command = Server(options, IDLE.load).command
    return diagnose(gather(command, logs=[path], gpu=options.gpu))


@pytest.mark.parametrize(("model", "gpu"), [("gemma-3-12b", "l40s"), ("gpt-oss-20b", "l4")])
def test_a_request_that_can_never_run_is_found_at_the_queues_head(model: str, gpu: str, folder: Folder) -> None:
    """The first fix leaves no request that is let in and can never be scheduled."""
    options = DeploymentOptions(model=model, gpu=gpu, engine_version="0.19.0")
    diagnosis = from_log(options, unschedulable(options), folder())
    assert sure(diagnosis.bottlenecks)[:1] == ["impossible_request_at_queue_head"], diagnosis.bottlenecks
    plan = Server(options, IDLE.load).with_fix(diagnosis.fixes[0]).options.resolve().plan
    assert plan is not None and plan.fits
    assert plan.longest_admissible is None or plan.longest_admissible >= plan.resolved.max_model_len


@pytest.mark.parametrize("gpu", ["l4", "rtx-3090"])
def test_a_deployment_that_does_not_fit_starts_after_the_first_fix(gpu: str, folder: Folder) -> None:
    options = DeploymentOptions(model="llama-3.1-8b", gpu=gpu)
    diagnosis = from_log(options, refused_start(options), folder())
    assert sure(diagnosis.bottlenecks)[:1] == ["hbm_bound"], diagnosis.bottlenecks
    plan = Server(options, IDLE.load).with_fix(diagnosis.fixes[0]).options.resolve().plan
    assert plan is not None and plan.fits


def test_at_least_a_dozen_kinds_of_fault_are_planted() -> None:
    assert len(FAULTS) + len([STALLS, unschedulable, refused_start]) >= 12
    assert len({fault.kind for fault in FAULTS.values()}) >= 11
