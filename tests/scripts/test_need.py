"""Installing prerequisites by name, with fake commands."""

import os
from pathlib import Path

import pytest

from scripts import need, need_kinds


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, in which only a test's commands and the shell's exist."""
    for module in (need, need_kinds):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def command(root: Path, name: str, script: str) -> None:
    path = root / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def java_tools(root: Path) -> None:
    """A Maven that writes one jar where it is told, or a class in target/, and counts its runs."""
    command(root, "javac", "")
    command(
        root,
        "mvn",
        f"""echo run >> {root}/runs
for argument; do
    case $argument in
        -DoutputDirectory=*) /bin/mkdir -p "${{argument#*=}}"; echo > "${{argument#*=}}/a.jar" ;;
        compile) /bin/mkdir -p target; echo > target/A.class ;;
    esac
done""",
    )


def runs(root: Path) -> int:
    return len((root / "runs").read_text(encoding="utf-8").splitlines())


def test_an_artifact_is_installed_once(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    java_tools(root)

    assert need.main(["maven:org.example:thing:1.0"]) == 0
    assert need.main(["maven:org.example:thing:1.0"]) == 0

    folder = root / ".cache" / "maven" / "org.example-thing-1.0"
    assert [path.name for path in folder.iterdir()] == ["a.jar"]
    assert runs(root) == 1
    assert need.place("maven:org.example:thing:1.0") == folder
    assert capfd.readouterr().out == f"maven:org.example:thing:1.0: {folder}\n" * 2


def test_an_artifact_alone_is_a_file(root: Path) -> None:
    java_tools(root)

    assert need.main(["jar:org.example:a:1.0"]) == 1, "Maven brought another file"
    with (root / "bin" / "mvn").open("a", encoding="utf-8") as script:
        script.write('\n/bin/mv "${argument#*=}/a.jar" "${argument#*=}/a-1.0.jar"\n')
    assert need.main(["jar:org.example:a:1.0"]) == 0
    assert need.place("jar:org.example:a:1.0") == root / ".cache" / "maven" / "a-1.0.jar"
    assert [path.name for path in (root / ".cache" / "maven").iterdir()] == ["a-1.0.jar"]


def test_an_artifact_that_fails_leaves_nothing_that_looks_installed(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command(root, "javac", "")
    command(root, "mvn", "exit 3")

    assert need.main(["maven:org.example:thing:1.0"]) == 1
    assert "Maven failed on org.example:thing:1.0 with status 3" in capfd.readouterr().err
    with pytest.raises(need_kinds.NeedError, match=r"Run \.venv/bin/python scripts/need\.py maven:org"):
        need.place("maven:org.example:thing:1.0")

    java_tools(root)
    assert need.main(["maven:org.example:thing:1.0"]) == 0


def test_a_module_is_compiled_anew_when_its_sources_change(root: Path) -> None:
    java_tools(root)
    folder = root / "module"
    (folder / "src").mkdir(parents=True)
    (folder / "pom.xml").write_text("<project/>", encoding="utf-8")
    (folder / "src" / "A.java").write_text("class A {}", encoding="utf-8")
    module = need_kinds.MavenModule(folder)

    assert module.present() is None
    module.install()
    assert module.present() == folder / "target"

    (folder / "target" / "Old.class").write_text("", encoding="utf-8")
    (folder / "src" / "A.java").write_text("class A { }", encoding="utf-8")
    assert module.present() is None
    module.install()
    assert module.present() == folder / "target"
    assert not (folder / "target" / "Old.class").exists()


def test_builds_of_a_maven_module_with_two_versions_stand_side_by_side(root: Path) -> None:
    command(root, "javac", "")
    command(root, "mvn", 'for chosen; do :; done; /bin/mkdir -p "target/${chosen#*=}"')
    folder = root / "module"
    (folder / "src").mkdir(parents=True)
    (folder / "pom.xml").write_text("<project/>", encoding="utf-8")
    modules = [need_kinds.MavenModule(folder, "library.version", version) for version in ("1.0", "2.0")]

    modules[0].install()
    assert [module.present() for module in modules] == [folder / "target" / "1.0", None]
    modules[1].install()
    assert [module.present() for module in modules] == [folder / "target" / "1.0", folder / "target" / "2.0"]


def test_a_go_command_is_compiled_anew_when_its_sources_change(root: Path) -> None:
    command(root, "go", f'echo run >> {root}/runs; echo > "$3"')
    folder = root / "judge"
    folder.mkdir()
    (folder / "main.go").write_text("package main", encoding="utf-8")
    module = need_kinds.GoModule(folder)

    assert module.present() is None
    module.install()
    first = module.present()
    assert first is not None

    (folder / "main.go").write_text("package main // changed", encoding="utf-8")
    assert module.present() is None
    module.install()
    second = module.present()
    assert second is not None
    assert list(second.parent.iterdir()) == [second]
    assert second != first
    assert runs(root) == 2


def test_a_go_command_that_does_not_compile_is_told(root: Path) -> None:
    command(root, "go", "exit 1")
    (root / "judge").mkdir()
    module = need_kinds.GoModule(root / "judge")
    with pytest.raises(need_kinds.NeedError, match="Go failed on"):
        module.install()
    assert module.present() is None


def test_a_missing_tool_is_one_sentence_for_an_ordinary_user(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command(root, "apt-get", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert need.main(["etcd"]) == 1
    told = capfd.readouterr().err.splitlines()[-1]
    assert told == "The command etcd is missing: as root, install it with: apt-get install etcd-server"


def test_a_tool_is_installed_by_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(
        root,
        "apt-get",
        f"""echo "$@" >> {root}/runs
[ "$1" = install ] && echo > {root}/bin/etcd && /bin/chmod +x {root}/bin/etcd
exit 0""",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert need.main(["etcd"]) == 0
    assert (root / "runs").read_text(encoding="utf-8").splitlines() == [
        "update",
        "install --yes --no-install-recommends etcd-server",
    ]
    assert need.place("etcd") == root / "bin" / "etcd"


def test_without_apt_the_sentence_says_so(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert need.main(["debian:etcd-server"]) == 1
    assert "this is not Debian" in capfd.readouterr().err
    assert not (root / "runs").exists()


def python_tools(root: Path, monkeypatch: pytest.MonkeyPatch, pip: str) -> None:
    """A Python whose venv module makes an environment with a Python that does what `pip` says."""
    script = (
        '/bin/mkdir -p "$3/bin"',
        f"""printf '#!/bin/sh\\necho "$@" >> {root}/runs\\n{pip}\\n' > "$3/bin/python\"""",
        '/bin/chmod +x "$3/bin/python"',
    )
    command(root, "python3", "\n".join(script))
    monkeypatch.setattr("sys.executable", str(root / "bin" / "python3"))


def test_a_python_package_has_an_environment_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_tools(root, monkeypatch, "exit 0")

    assert need.main(["python:thing==1.0"]) == 0
    assert need.main(["python:thing==1.0"]) == 0

    assert need.place("python:thing==1.0") == root / ".cache" / "python" / "thing-1.0" / "bin" / "python"
    assert runs(root) == 1
    assert (root / "runs").read_text(encoding="utf-8").endswith(" thing==1.0\n")


def test_a_python_package_that_fails_leaves_nothing_that_looks_installed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    python_tools(root, monkeypatch, "exit 4")

    assert need.main(["python:thing==1.0"]) == 1
    assert " thing==1.0 failed with status 4" in capfd.readouterr().err
    with pytest.raises(need_kinds.NeedError, match=r"Run .* python:thing==1\.0"):
        need.place("python:thing==1.0")


def test_a_version_of_spark_comes_with_what_tidewire_needs_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but pyspark and its py4j have the lock's versions. Other requirements need another environment."""
    python_tools(root, monkeypatch, "exit 0")
    project = '[project]\ndependencies = ["a>=1"]\noptional-dependencies.spark = ["pyspark>=4.0,<4.4"%s]\n'
    (root / "pyproject.toml").write_text(project % "", encoding="utf-8")
    locked = "a==1.5 \\\n    --hash=sha256:00\npy4j==0.1 \\\npyspark==4.3.0 \\\nb==2 ; python_version < '3.12' \\\n"
    (root / "requirements.lock").write_text(locked, encoding="utf-8")

    assert need.main(["spark:4.0.5"]) == 0
    assert need.main(["spark:4.0.5"]) == 0

    folder = root / ".cache" / "python" / "spark-4.0.5"
    assert need.place("spark:4.0.5") == folder / "bin" / "python"
    assert runs(root) == 1
    assert (root / "runs").read_text(encoding="utf-8").endswith("a>=1 pyspark>=4.0,<4.4 pyspark==4.0.5\n")
    constraints = (folder / "constraints").read_text(encoding="utf-8")
    assert constraints.splitlines() == ["a==1.5", "b==2 ; python_version < '3.12'"]

    (root / "pyproject.toml").write_text(project % ', "c"', encoding="utf-8")
    with pytest.raises(need_kinds.NeedError, match=r"Run .* spark:4\.0\.5"):
        need.place("spark:4.0.5")


def test_an_installation_that_brought_nothing_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command(root, "apt-get", "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert need.main(["etcd"]) == 1
    assert "still missing" in capfd.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "nope",
        "maven:a:b",
        "maven:a:b:../c/d",
        "maven:a:b:c:d",
        "debian:",
        "debian:-y x",
        "python:a",
        "python:a==/",
        "spark:4",
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(need_kinds.NeedError, match="Known are pulsar-java-client"):
        need.need_of(name)
