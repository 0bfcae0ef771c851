"""The generated pages of docs/ say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headway_docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    """Run `make docs` when this fails."""
    assert _generator().stale_pages() == []


def test_every_setting_is_in_the_flag_reference() -> None:
    """A field that is added without being declared as an option would be missing from flags and page alike."""
    import dataclasses

    from headway.config import EngineOptions, ServerOptions

    page = _generator().flags_page()
    for cls in (EngineOptions, ServerOptions):
        for field in dataclasses.fields(cls):
            assert "help" in field.metadata, f"{cls.__name__}.{field.name} is not an option"
            assert field.metadata["help"] in page
