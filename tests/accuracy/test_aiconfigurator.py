"""The aiconfigurator oracle: a clear error without the extra, and the package's own figures with it."""

from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.executors.simulated.aiconfigurator import AicOracle, AicSetup
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.simulation.oracles import make_oracle

SETUP = AicSetup("nvidia/Llama-3.1-70B-Instruct-FP8", "H100-SXM5-80GB", kv_cache_dtype="fp8")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of headway needs the package."""
    monkeypatch.setattr("headway.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"headway\[aic\].*--latency roofline"):
        AicOracle(SETUP)


def test_cards_without_data_are_said() -> None:
    """No consumer or PCIe cards."""
    with pytest.raises(ConfigError, match="no vLLM data for RTX-4090"):
        AicOracle(AicSetup("meta-llama/Llama-3.1-8B", "RTX-4090-24GB"))


def test_it_needs_a_model_and_a_gpu() -> None:
    """As the command line says it."""
    with pytest.raises(ConfigError, match="--model and --gpu"):
        make_oracle("aiconfigurator", None)
    with pytest.raises(ConfigError, match="no latency oracle 'magic'"):
        make_oracle("magic", None)


def test_its_figures() -> None:
    """Llama 70B FP8 on one H100, kernels of vLLM 0.24: as read in the package by hand."""
    pytest.importorskip("aiconfigurator_core")
    oracle = AicOracle(SETUP)
    decodes = [oracle.step_time(decode_shape(n, n * context)).device_s for n, context in ((1, 512), (64, 2048))]
    assert decodes == pytest.approx([27.7e-3, 37.3e-3], rel=0.01)
    prompt = StepShape((Chunk(2048, 0),), 0, 0, 0, 1)
    assert oracle.step_time(prompt).device_s == pytest.approx(254e-3, rel=0.01)
    mixed = StepShape((Chunk(512, 0),), 64, 64, 64 * 2048, 65)
    assert sum(part.seconds for part in oracle.explain(mixed)) == pytest.approx(oracle.step_time(mixed).device_s)
