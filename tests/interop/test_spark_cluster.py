"""A Spark cluster, whose executors have separate folders and Pythons, gets what is shipped.

Spark's own `local-cluster` starts a master, workers and executors as a standalone cluster does. A job runs in a
separate
folder, as with `spark-submit`. Nothing in its environment refers to this checkout, except the shipped archive or zip.
The large packages that a cluster's image usually has are linked into the environments.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
import trio

import tidewire
from tests.support import shipped_job
from tests.support.admin import Admin
from tests.support.java import QUICK_ENVIRONMENT
from tests.support.processes import RunningBroker, running_broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CHECKOUT: Final = Path(__file__).parents[2]
ROWS: Final = 400
TOPIC: Final = "topic://public/default/x"
TARGETS: Final = ("topic://public/default/shipped", "topic://public/default/registered")

NEEDED: Final = ("protobuf", "mmh3", "cramjam", "google-crc32c", "orjson", "pyarrow", "pandas")
"""What executors need beside tidewire and Spark, as docs/how-to/spark-cluster.md says (Avro takes fastavro, too)."""
OF_THOSE: Final = ("numpy", "python-dateutil", "pytz", "tzdata")
"""What these bring with them."""
EXECUTORS_SECONDS_MAX: Final = 120
"""All executors have started by then, even on a busy machine."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run a broker with rows in a topic of four segments."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        for topic in (TOPIC, *TARGETS):
            Admin(broker.http_url).create(topic, 4)

        async def write() -> None:
            with trio.fail_after(60):
                async with tidewire.connect(broker.service_url) as client, client.producer(TOPIC) as producer:
                    for number in range(ROWS):
                        await producer.enqueue(b"%d" % number, key=f"k{number}")

        trio.run(write)
        yield broker


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(["hatchling", "build", "-t", "wheel", "-d", str(folder)], CHECKOUT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def spark_home(tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the installed Spark's home: executors work in a folder below it."""
    home, installed = tmp_path / "spark", Path(pyspark.__file__).parent
    libraries = home / "python" / "lib"
    libraries.mkdir(parents=True)
    for source, target in ((installed, home), (installed / "python" / "lib", libraries)):
        for path in source.iterdir():
            if path.name not in ("python", "pyspark.zip"):
                (target / path.name).symlink_to(path)
    # Each Python of Spark's imports from here; a zip would be compiled every time.
    (libraries / "pyspark.zip").mkdir()
    (libraries / "pyspark.zip" / "pyspark").symlink_to(installed)
    yield home
    shutil.rmtree(home / "work", ignore_errors=True)


def run(command: list[str], folder: Path) -> None:
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([tool, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def environment(folder: Path) -> Path:
    """Return a Python with the packages that executors need besides the wheel."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in (*NEEDED, *OF_THOSE):
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder


def with_executors(count: int) -> list[str]:
    """Let no task begin before so many executors of one core are there. The first one might do all of them."""
    settings = {
        "spark.cores.max": count,
        "spark.scheduler.minRegisteredResourcesRatio": 1,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{EXECUTORS_SECONDS_MAX}s",
    }
    return [f"--conf {name}={value}" for name, value in settings.items()]


def submit(folder: Path, home: Path, arguments: list[str], variables: dict[str, str], job: list[str]) -> dict[str, Any]:
    """Run the job. Return its output."""
    given = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    here = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
    }
    done = subprocess.run(
        [sys.executable, shipped_job.__file__, *job],
        cwd=folder,
        env={**given, **QUICK_ENVIRONMENT, **here, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def check(said: dict[str, Any], home: Path, package: str, executors: int) -> None:
    """Check that executors with the shipped package read and wrote every row once."""
    tasks = said["tasks"]
    assert sum(task["rows"] for task in tasks) == ROWS
    assert said["streamed"] == list(range(ROWS))
    folders = {Path(task["folder"]) for task in tasks}
    assert len(folders) == executors
    assert {folder.parents[1] for folder in folders} == {home / "work"}
    assert {Path(task["folder"], task["package"]) for task in tasks} == {folder / package for folder in folders}


def test_an_environment_with_the_wheel_is_shipped_and_the_format_found_by_its_name(
    broker: RunningBroker, wheel: Path, spark_home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    made = environment(folder / "environment")
    run(["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(made), str(wheel)], folder)
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        for path in made.iterdir():
            archive.add(path, path.name)
    said = submit(
        folder,
        spark_home,
        ["--archives", "environment.tar.gz#environment", *with_executors(2)],
        {"PYSPARK_PYTHON": "./environment/bin/python"},
        [broker.service_url, TOPIC, TARGETS[0], "local-cluster[2,1,1024]"],
    )
    (site,) = made.glob("lib/python*/site-packages")
    check(said, spark_home, f"environment/{site.relative_to(made)}/tidewire/__init__.py", 2)


def test_the_wheel_goes_with_py_files_when_executors_have_what_it_needs_and_is_registered(
    broker: RunningBroker, wheel: Path, spark_home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    python = environment(tmp_path / "python") / "bin" / "python"
    shutil.copy(wheel, folder / "tidewire.zip")
    said = submit(
        folder,
        spark_home,
        ["--py-files", "tidewire.zip", *with_executors(1)],
        {"PYSPARK_PYTHON": str(python), "PYTHONPATH": "tidewire.zip"},
        [broker.service_url, TOPIC, TARGETS[1], "local-cluster[1,1,1024]", "register"],
    )
    check(said, spark_home, "tidewire.zip/tidewire/__init__.py", 1)
