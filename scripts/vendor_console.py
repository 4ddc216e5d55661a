"""Brings the console's libraries from the npm registry into the package, where the broker serves them as files.

    python scripts/vendor_console.py            write broker/console/page/vendor/
    python scripts/vendor_console.py --check    fail if a file there differs from its package

Each package is pinned by version and by the hash of its archive. npm's own client downloads it. There is no build step:
the files are the ES modules that their authors ship. One thing is changed. A browser cannot resolve the bare name
`preact`, so imports of it name the file beside them.
"""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

VENDOR: Final = Path(__file__).parents[1] / "broker" / "console" / "page" / "vendor"


class Package(NamedTuple):
    """One package of the npm registry."""

    name: str
    version: str
    sha512: str
    """Of the archive, in base64, as npm writes it."""
    files: Mapping[str, str]
    """Where each file of the archive goes."""


PACKAGES: Final = (
    Package(
        "preact",
        "11.2.0",
        "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {
            "dist/preact.mjs": "preact.js",
            "hooks/dist/hooks.mjs": "hooks.js",
            "LICENSE": "preact.LICENSE.txt",
        },
    ),
    Package(
        "htm",
        "3.1.1",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js", "LICENSE": "htm.LICENSE.txt"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "uplot.LICENSE.txt"},
    ),
)


def main() -> int:
    """Write the files, or check them."""
    is_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not is_check:
        print(__doc__)
        return 2
    wrong = 0
    for package in PACKAGES:
        for name, content in _files_of(package):
            path = VENDOR / name
            if is_check:
                if not path.exists() or path.read_bytes() != content:
                    print(f"{path} differs from {package.name} {package.version}. Run scripts/vendor_console.py.")
                    wrong += 1
            else:
                VENDOR.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                print(f"{name}: {len(content):,} bytes of {package.name} {package.version}")
    return 1 if wrong else 0


def _files_of(package: Package) -> Iterator[tuple[str, bytes]]:
    archive = _archive(package)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        for inside, name in package.files.items():
            found = files.extractfile(f"package/{inside}")
            assert found is not None, f"{package.name} has no file {inside}"
            content = found.read()
            if name.endswith(".js"):
                content = _without_map(content).replace(b'from"preact"', b'from"./preact.js"')
            yield name, content


def _archive(package: Package) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        (path,) = Path(folder).glob("*.tgz")
        archive = path.read_bytes()
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != package.sha512:
        raise SystemExit(
            f"The archive of {package.name} {package.version} has the hash {found}, and {package.sha512} is pinned. "
            "Find out why before you change the pin."
        )
    return archive


def _without_map(content: bytes) -> bytes:
    """Drop the reference to a source map, which is not shipped."""
    lines = [line for line in content.splitlines() if not line.startswith(b"//# sourceMappingURL=")]
    return b"\n".join(lines) + b"\n"


if __name__ == "__main__":
    sys.exit(main())
