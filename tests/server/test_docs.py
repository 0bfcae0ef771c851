"""docs/http-api.md names every route, every field and every refusal."""

from __future__ import annotations

from pathlib import Path

from headway.frontends.server.app import ROUTES
from headway.frontends.server.body import UNSUPPORTED_FIELDS
from headway.frontends.server.protocol import ChatBody, CompletionBody

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


def test_every_route_is_described() -> None:
    for route in ROUTES:
        assert f"{route.path.replace(':path', '')}`" in PAGE, route.path


def test_every_field_is_described() -> None:
    for name in {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *UNSUPPORTED_FIELDS}:
        assert f"`{name}`" in PAGE, name
