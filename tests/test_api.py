"""The public names: what they are, that each says how it is used, and that the example runs."""

from __future__ import annotations

import doctest
import inspect

import pytest

import headway
from headway import api
from headway.errors import ConfigError


def test_every_public_name_is_listed_and_documented() -> None:
    """`__all__`, `dir` and the module's own docstring name the same things."""
    assert headway.__doc__ is not None
    for name in headway.__all__:
        assert name in dir(headway) and f"`{name}`" in headway.__doc__
        assert ">>>" in (inspect.getdoc(getattr(headway, name)) or ""), f"{name} has no example"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        headway.nothing  # noqa: B018


@pytest.mark.parametrize("name", headway.__all__)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    public = getattr(headway, name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(public) or "", {}, name, None, 0)
    outcome = runner.run(example)
    assert outcome.attempted > 0 and outcome.failed == 0


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="max_num_sequences"):
        api.simulate("llama-3.1-8b", "h100", max_num_sequences=3)
