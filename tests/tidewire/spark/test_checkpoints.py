"""What a sink reads in a stream's checkpoint folder."""

from pathlib import Path

import pytest

from tidewire.spark.checkpoints import plan_of, query_of


def test_a_plan_is_what_spark_wrote_into_the_checkpoint(tmp_path: Path) -> None:
    """E19: this process must be able to read it."""
    folder = tmp_path / "check point"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "7").write_bytes(b"v1\n{}")
    plan = plan_of(str(folder), 7)
    assert plan is not None
    assert plan == plan_of(folder.as_uri(), 7) == plan_of(f"file:{folder.as_posix().replace(' ', '%20')}", 7)
    assert plan_of(str(folder), 8) is None
    assert plan_of("s3a://bucket/folder", 7) is None
    assert plan_of(None, 7) is None
    (folder / "offsets" / "7").write_bytes(b"v1\n{ }")
    assert plan_of(str(folder), 7) != plan


@pytest.mark.parametrize(
    ("metadata", "query"),
    [(b'{"id":"a-b"}', "a-b"), (b"{}", None), (b'{"id":5}', None), (b"[]", None), (b"", None), (b"\xff", None)],
)
def test_a_query_is_known_by_its_checkpoint(tmp_path: Path, metadata: bytes, query: str | None) -> None:
    """D17: this holds for any content of the file."""
    assert query_of(str(tmp_path)) is None
    (tmp_path / "metadata").write_bytes(metadata)
    assert query_of(str(tmp_path)) == query
