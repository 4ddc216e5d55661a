"""The kinds of things that tests need, and how each is found and installed. `need.py` gives them names.

Something partial never counts as present.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent

_LOCKED = re.compile(r"^(?P<package>[\w.-]+)==[\w.]+( ; [^\\\n]+)?", re.ASCII | re.MULTILINE)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>needs</groupId><artifactId>needs</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""
# The version is fixed, so that the same plugin runs on every machine.
_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_COPY_DEPENDENCIES: Final = f"{_DEPENDENCY_PLUGIN}:copy-dependencies"
_COPY: Final = f"{_DEPENDENCY_PLUGIN}:copy"


class NeedError(Exception):
    """Something is not installed, or could not be installed; the message says what to do."""


class Need(Protocol):
    """Something that is either completely installed or missing."""

    def present(self) -> Path | None:
        """Return its place, or None if it is missing or out of date. This is fast."""

    def install(self) -> None:
        """Install it.

        Raises:
            NeedError: it cannot be installed.
        """


@dataclass(frozen=True, slots=True)
class Command:
    """A command on the path, from a Debian package."""

    command: str
    package: str

    def present(self) -> Path | None:
        """The command's path."""
        found = shutil.which(self.command)
        return None if found is None else Path(found)

    def install(self) -> None:
        """Install its package, as root."""
        _install_debian(self.package, f"the command {self.command} is missing")


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A Debian package, whatever is in it."""

    package: str

    def present(self) -> Path | None:
        """The list of its files."""
        if shutil.which("dpkg-query") is None:
            return None
        asked = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Architecture}", self.package],
            capture_output=True,
            text=True,
            check=False,
        )
        status, _, architecture = asked.stdout.partition(" ")
        # A package that can be there for several architectures has its list under its full name.
        names = (self.package, f"{self.package}:{architecture}") if status == "installed" else ()
        lists = (Path("/var/lib/dpkg/info", f"{name}.list") for name in names)
        return next((path for path in lists if path.exists()), None)

    def install(self) -> None:
        """Install it, as root."""
        _install_debian(self.package, f"the Debian package {self.package} is missing")


@dataclass(frozen=True, slots=True)
class MavenArtifact:
    """A Maven artifact with its run-time dependencies, as a folder of jars in .cache/maven."""

    group: str
    artifact: str
    version: str

    @property
    def _folder(self) -> Path:
        return ROOT / ".cache" / "maven" / f"{self.group}-{self.artifact}-{self.version}"

    def present(self) -> Path | None:
        """Return the folder of jars, which appears only when it is complete."""
        return self._folder if self._folder.is_dir() else None

    def install(self) -> None:
        """Download and copy the jars."""
        partial = self._folder.with_name(self._folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        pom = partial / "pom.xml"
        pom.write_text(_POM.format(group=self.group, artifact=self.artifact, version=self.version), encoding="utf-8")
        jars = partial / "jars"
        _maven(
            partial,
            [_COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
            f"{self.group}:{self.artifact}:{self.version}",
        )
        jars.rename(self._folder)
        shutil.rmtree(partial)


@dataclass(frozen=True, slots=True)
class MavenJar:
    """A Maven artifact without its dependencies, which are put together by hand because their versions do not fit."""

    group: str
    artifact: str
    version: str

    @property
    def _file(self) -> Path:
        return ROOT / ".cache" / "maven" / f"{self.artifact}-{self.version}.jar"

    def present(self) -> Path | None:
        """The jar."""
        return self._file if self._file.is_file() else None

    def install(self) -> None:
        """Download it."""
        partial = self._file.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        artifact = f"{self.group}:{self.artifact}:{self.version}"
        _maven(partial, [_COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={partial}"], artifact)
        brought = partial / self._file.name
        if not brought.is_file():
            raise NeedError(f"Maven did not download {self._file.name} for {artifact}.")
        brought.rename(self._file)
        shutil.rmtree(partial)


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """A Python package with its dependencies, in an environment of its own in .cache/python."""

    package: str
    version: str

    @property
    def _folder(self) -> Path:
        return ROOT / ".cache" / "python" / f"{self.package}-{self.version}"

    @property
    def _stamp(self) -> Path:
        return self._folder / "complete"

    def present(self) -> Path | None:
        """Return the environment's interpreter."""
        return self._folder / "bin" / "python" if self._stamp.is_file() else None

    def install(self) -> None:
        """Make the environment."""
        _make_environment(self._folder, [f"{self.package}=={self.version}"])
        self._stamp.touch()


@dataclass(frozen=True, slots=True)
class SparkEnvironment:
    """An environment with the dependencies of `tidewire[spark]`, without Tidewire, and a chosen version of pyspark.

    pip refuses a version that the extra excludes. The other packages have the versions in requirements.lock.
    """

    version: str

    @property
    def _folder(self) -> Path:
        return ROOT / ".cache" / "python" / f"spark-{self.version}"

    @property
    def _stamp(self) -> Path:
        return self._folder / "complete"

    def _requirements(self) -> list[str]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return [*project["dependencies"], *project["optional-dependencies"]["spark"], f"pyspark=={self.version}"]

    def _constraints(self) -> str:
        locked = _LOCKED.finditer((ROOT / "requirements.lock").read_text(encoding="utf-8"))
        # pyspark names its own version of py4j.
        return "\n".join(one[0].strip() for one in locked if one["package"] not in {"pyspark", "py4j"})

    def _contents(self) -> str:
        return "\n".join([*self._requirements(), self._constraints()])

    def present(self) -> Path | None:
        """Return the environment's interpreter, if the environment was made from the present requirements."""
        if not self._stamp.is_file() or self._stamp.read_text(encoding="utf-8") != self._contents():
            return None
        return self._folder / "bin" / "python"

    def install(self) -> None:
        """Make the environment."""
        _make_environment(self._folder, self._requirements(), self._constraints())
        self._stamp.write_text(self._contents(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class MavenModule:
    """A Maven module of this project, compiled, with its dependencies, in its target/.

    A module may be built with several versions of a library. Each build has a folder of its own in target/, which the
    module's pom.xml chooses by the same property.
    """

    folder: Path
    library: str = ""
    """The property of pom.xml that has the library's version, or none."""
    version: str = ""

    @property
    def _target(self) -> Path:
        return self.folder / "target" / self.version

    @property
    def _stamp(self) -> Path:
        return self._target / "complete"

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in [self.folder / "pom.xml", *sorted((self.folder / "src").rglob("*"))]:
            if path.is_file():
                digest.update(f"{path.relative_to(self.folder)}\n{path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def present(self) -> Path | None:
        """Return its target/, if it was built from the current sources."""
        if not self._stamp.is_file() or self._stamp.read_text(encoding="utf-8") != self._digest():
            return None
        return self._target

    def install(self) -> None:
        """Compile it from scratch, so that no older sources or versions are on its class path."""
        if not (self.folder / "pom.xml").is_file():
            raise NeedError(f"{self.folder} is not a Maven module: it has no pom.xml.")
        digest = self._digest()
        shutil.rmtree(self._target, ignore_errors=True)
        chosen = [f"-D{self.library}={self.version}"] if self.library else []
        _maven(self.folder, ["compile", *chosen], str(self.folder.relative_to(ROOT)))
        self._stamp.write_text(digest, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class GoModule:
    """A command of this project written in Go, compiled, in .cache/go."""

    folder: Path

    @property
    def _binary(self) -> Path:
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            if path.suffix in {".go", ".mod", ".sum"}:
                digest.update(f"{path.name}\n{path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
        return ROOT / ".cache" / "go" / f"{self.folder.name}-{digest.hexdigest()[:16]}"

    def present(self) -> Path | None:
        """Return the command, if it was built from the current sources."""
        return self._binary if self._binary.is_file() else None

    def install(self) -> None:
        """Compile it, and remove builds of other sources."""
        if GO.present() is None:
            GO.install()
        binary = self._binary
        partial = binary.with_name(binary.name + ".partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", "build", "-o", str(partial), "."],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode != 0:
            raise NeedError(f"Go failed on {self.folder} with status {done.returncode}; its output is above.")
        for older in binary.parent.glob(f"{self.folder.name}-*"):
            if older != partial:
                older.unlink()
        partial.rename(binary)


MAVEN: Final = Command("mvn", "maven")
GO: Final = Command("go", "golang-go")
JDK: Final = Command("javac", "openjdk-17-jdk-headless")


def _make_environment(folder: Path, requirements: Sequence[str], constraints: str = "") -> None:
    """Make an environment with these packages. It cannot be moved, so a stamp has to say that it is complete."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    constrained = folder / "constraints"
    constrained.write_text(constraints, encoding="utf-8")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", "--constraint", str(constrained), *requirements],
    ):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            raise NeedError(f"{' '.join(command)} failed with status {done.returncode}; its output is above.")


def _maven(folder: Path, goals: list[str], what: str) -> None:
    for command in (JDK, MAVEN):
        if command.present() is None:
            command.install()
    # Maven's output is for people, so it goes to standard error. This script's own output is for other scripts.
    done = subprocess.run(
        ["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", *goals],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode != 0:
        raise NeedError(f"Maven failed on {what} with status {done.returncode}; its output is above.")


def _install_debian(package: str, reason: str) -> None:
    by_hand = f"install it with: apt-get install {package}"
    if shutil.which("apt-get") is None:
        raise NeedError(f"{reason[0].upper()}{reason[1:]}, and this is not Debian, so {package} cannot be installed.")
    if os.geteuid() != 0:
        raise NeedError(f"{reason[0].upper()}{reason[1:]}: as root, {by_hand}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            raise NeedError(f"{' '.join(command)} failed with status {done.returncode}; {reason}.")
