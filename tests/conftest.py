"""Fixtures that several test files use."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give the folder of an empty cache of one's own."""
    place = tmp_path / "cache"
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(place))
    return place
