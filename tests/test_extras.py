"""What is said where an optional package is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway import factory
from headway.config import EngineOptions
from headway.errors import ConfigError
from headway.extras import require
from headway.text import ChatTemplate, Tokenizer
from tests.text.support import write_gguf


@pytest.mark.parametrize("package", ["gguf", "tokenizers"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", ["a"], ggml__merges=["a a"])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"'{package}' is needed.*pip install 'headway\[torch\]'"):
        Tokenizer.from_gguf(path)


def test_chat_without_jinja_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    with pytest.raises(ConfigError, match=r"headway\[torch\]"):
        ChatTemplate("x")


def test_a_package_that_is_there_but_broken_shows_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_package_for_test.py").write_text("import certainly_absent_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="certainly_absent_dependency"):
        require("broken_package_for_test")


def test_importing_the_package_loads_no_optional_dependency() -> None:
    names = ("tokenizers", "gguf", "jinja2", "numpy", "torch")
    code = f"import sys, headway.text; print([name for name in {names} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_real_model_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded, and not as an import error."""
    monkeypatch.setattr("headway.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs torch.*pip install 'headway\[torch\]'"):
        factory.load_model(None, EngineOptions())
    with pytest.raises(ConfigError, match=r"headway\[torch\]"):
        factory.kernel_path()
