"""Options are made from the dataclasses: same names, same defaults, typed values."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headway.cli.options import options_from, options_of
from headway.config import EngineOptions, ServerOptions
from headway.errors import ConfigError


def parse(*arguments: str, env: dict[str, str] | None = None) -> tuple[EngineOptions, ServerOptions, Any]:
    """What a command with both sets of options gets."""
    seen: list[Any] = []

    @click.command()
    @options_from(ServerOptions, envvars={"api_key": "HEADWAY_API_KEY"})
    @options_from(EngineOptions)
    def command(**params: Any) -> None:
        seen.extend([options_of(EngineOptions, params), options_of(ServerOptions, params)])

    result = CliRunner(env=env).invoke(command, list(arguments))
    return (*seen, result) if seen else (EngineOptions(), ServerOptions(), result)


def test_without_flags_the_defaults_of_the_dataclasses_hold() -> None:
    engine, server, result = parse()
    assert result.exit_code == 0
    assert engine == EngineOptions() and server == ServerOptions()


def test_every_field_has_a_flag_in_vllms_spelling() -> None:
    help_text = parse("--help")[2].output
    for cls in (EngineOptions, ServerOptions):
        for field in dataclasses.fields(cls):
            flag = field.metadata["flag"] or field.name.replace("_", "-")
            assert f"--{flag} " in help_text, field.name
    assert "--num-gpu-blocks-override" in help_text


def test_values_are_typed() -> None:
    engine, server, result = parse(
        *("--max-num-seqs", "8", "--kv-cache-memory-bytes", "1.5GiB", "--watermark", "0.1", "--policy", "static"),
        *("--no-enable-prefix-caching", "--async-scheduling", "--no-scheduler-reserve-full-isl"),
        *("--port", "0", "--api-key", "k", "--num-gpu-blocks-override", "9"),
    )
    assert result.exit_code == 0, result.output
    assert engine.max_num_seqs == 8 and engine.kv_cache_memory_bytes == 3 * 2**29 and engine.watermark == 0.1
    assert engine.policy == "static" and engine.enable_prefix_caching is False and engine.async_scheduling is True
    assert engine.scheduler_reserve_full_isl is False and engine.num_blocks == 9
    assert server.port == 0 and server.api_key == "k"


@pytest.mark.parametrize("arguments", [("--kv-cache-memory-bytes", "lots"), ("--port", "http"), ("--no-such-flag",)])
def test_a_bad_value_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert parse(*arguments)[2].exit_code == 2


def test_a_policy_that_does_not_exist_is_our_own_error() -> None:
    """As where several are named at once."""
    assert isinstance(parse("--policy", "best")[2].exception, ConfigError)


def test_the_key_may_come_from_the_environment() -> None:
    assert parse(env={"HEADWAY_API_KEY": "secret"})[1].api_key == "secret"
    assert parse("--api-key", "other", env={"HEADWAY_API_KEY": "secret"})[1].api_key == "other"
