"""The image of recipes/cluster/Dockerfile serves a model. `helpers/image.py` builds it without Docker."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from image import Image, build, debian
from texts import ROOT
from tiny_model import make_model

DOCKERFILE = ROOT / "recipes/cluster/Dockerfile"
# Runs the image's command and health check, sends requests with a wrong and a valid key, and stops the server as
# `docker stop` does.
SERVE = """
key=$(nmt keys add me)
"$@" & server=$!
for try in $(seq 300); do python -c "$CHECK" 2>/dev/null && break; sleep 0.2; done
python -c "$CHECK" || exit 9
python - "$key" <<'END'
import json, sys, urllib.error, urllib.request
body = json.dumps({"q": "der Hund geht.", "source": "en", "target": "de"}).encode()
address = "http://127.0.0.1:5000/translate"
for key in ("nmt_wrong", sys.argv[1]):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        print(json.load(urllib.request.urlopen(urllib.request.Request(address, body, headers)))["translatedText"])
    except urllib.error.HTTPError as error:
        print(error.code)
END
kill -TERM $server
wait $server; echo "stopped with $?"
python -c "$CHECK" 2>/dev/null || echo "the check fails"
"""


def test_hadolint_finds_nothing_wrong() -> None:
    if not shutil.which("hadolint"):
        pytest.skip("hadolint is not installed")
    done = subprocess.run(["hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if os.getuid() or not shutil.which("debootstrap"):
        pytest.skip("this needs root and debootstrap")
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as directory:  # needs 3 GB
        base = Path(os.environ.get("NMT_DEBIAN") or debian(Path(directory) / "base"))
        # PyTorch's index of CPU builds may be unreachable. PyPI has the same version, perhaps built for CUDA.
        yield build(DOCKERFILE, ROOT, base, Path(directory), {"TORCH_INDEX": "https://pypi.org/simple"})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_serves_and_translates_as_an_ordinary_user(image: Image, tmp_path: Path) -> None:
    shutil.copytree(make_model(tmp_path), image.root / "models/en-de")
    line = ["sh", "-c", "echo 'der Hund geht.' | nmt translate --quiet --model /models/en-de"]
    translated = image.run(line)
    assert translated.returncode == 0, translated.stderr
    assert image.user not in ("", "0", "root")
    command = [*image.entry, *image.command]
    served = image.run(["sh", "-c", SERVE, "sh", *command], CHECK=image.check[2])
    expected = f"403\n{translated.stdout}stopped with 0\nthe check fails\n"
    assert (served.returncode, served.stdout) == (0, expected), served.stderr
    assert image.check[:2] == ["python", "-c"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_has_the_engine_no_compiler_and_few_writable_directories(image: Image) -> None:
    imported = image.run(["python", "-c", "from nmt_cli.engine import library"])
    assert imported.returncode == 0, imported.stderr
    assert (next(image.root.glob("opt/nmt/lib/*/site-packages/nmt_cli/engine/libengine.so"))).stat().st_size > 10_000
    found = image.run(["sh", "-c", "command -v cc gcc clang zig ld; pip list 2>/dev/null | grep -i zig"])
    assert found.stdout == ""
    keys = image.run(["nmt", "keys", "list"])
    assert (keys.returncode, "database" in keys.stderr) in ((66, True), (0, False)), (
        keys.stderr
    )  # $NMT_DATABASE is missing, or has keys
    write = image.run(["sh", "-c", "touch /opt/nmt/x /models/x /x"])
    assert write.stderr.count("Permission denied") == 2, "only /models should be writable"
    extras = image.run(["python", "-c", "import pg8000, starlette"])
    assert extras.returncode == 0, extras.stderr
