"""Published clients work with `nmt serve`; each is installed into an environment of its own, or skipped."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from office_files import HEAD, A, P, docx, odf, ooxml, paragraph, run
from serving import hypotheses, server
from texts import ROOT

from nmt_cli import Translator

pytestmark = pytest.mark.clients
TEXTS = ["der Hund geht.", "rot & und <das>", "die Katze ist\nnicht rot 🙂"]

# A script for each client. `texts` and `url` are given, and the script must set `translations`.
PYTHON = {
    "libretranslatepy==2.1.4": """
from libretranslatepy import LibreTranslateAPI
api = LibreTranslateAPI(url)
assert api.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
assert {found["language"] for found in api.detect("Das Haus ist rot.")} <= {"en", "de"}
translations = [api.translate(text, "en", "de") for text in texts]
""",
    "libretranslate-aio==0.1.3": """
import libretranslate_aio as library
with library.LibreTranslate(base_url=url) as api:
    assert api.languages()[0].targets == ["de"] and api.health()
    assert api.frontend_settings().language.source.code == "en"
    assert len(api.translate(texts[0], "en", "de", alternatives=2).alternatives) <= 2
    assert api.translate("The house is red.", "auto", "de").detected_language.language == "en"
    try:
        api.translate("rot", "en", "xx")
    except library.BadRequestError as error:
        assert "xx is not supported" in str(error)
    translations = api.translate(texts, "en", "de").translated_text
""",
    "deep-translator==1.11.4": """
from deep_translator import LibreTranslator
translations = LibreTranslator(source="en", target="de", api_key="-", custom_url=url + "/").translate_batch(texts)
""",
    "deepl==1.32.0": """
import deepl
api = deepl.Translator("-", server_url=url)
results = api.translate_text(texts, source_lang="EN", target_lang="DE", formality="prefer_more")
assert [one.billed_characters for one in results] == [len(text) for text in texts]
assert api.translate_text("<x>rot</x> und", target_lang="DE", source_lang="EN", tag_handling="xml",
                          ignore_tags=["x"]).text.count("<x>rot</x>") == 1
assert [one.code for one in api.get_source_languages()] == ["EN"]
assert [one.code for one in api.get_target_languages()] == ["DE"]
assert api.get_usage().character.count > 0
try:
    api.translate_text("rot", target_lang="FR")
except deepl.DeepLException as error:
    assert "FR is not supported" in str(error)
glossary = api.create_glossary("ours", "EN", "DE", {"rot": "Baum"})
assert [(one.glossary_id, one.entry_count) for one in api.list_glossaries()] == [(glossary.glossary_id, 1)]
assert api.get_glossary(glossary.glossary_id).name == "ours" and api.get_glossary_entries(glossary) == {"rot": "Baum"}
assert [(one.source_lang, one.target_lang) for one in api.get_glossary_languages()] == [("en", "de")]
assert "Baum" in api.translate_text("rot und", source_lang="EN", target_lang="DE", glossary=glossary).text.split()
api.delete_glossary(glossary)
client = deepl.DeepLClient("-", server_url=url)
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries
entries = Entries("EN", "DE", {"rot": "Baum"})
many = client.create_multilingual_glossary("ours", [entries])
assert [one.entry_count for one in client.get_multilingual_glossary(many.glossary_id).dictionaries] == [1]
assert client.translate_text("rot", source_lang="EN", target_lang="DE", glossary=many).text.split().count("Baum") == 1
client.update_multilingual_glossary_name(many, "others")
more = Entries("EN", "DE", {"und": "Katze"})
assert client.update_multilingual_glossary_dictionary(many, more).dictionaries[0].entry_count == 2
[found] = client.get_multilingual_glossary_entries(many, "EN", "DE").dictionaries
assert found.entries == "rot\\tBaum\\nund\\tKatze"
assert client.replace_multilingual_glossary_dictionary(many, more).entry_count == 1
client.delete_multilingual_glossary_dictionary(many, source_lang="EN", target_lang="DE")
assert [one.name for one in client.list_multilingual_glossaries()] == ["others"]
client.delete_multilingual_glossary(many)
import io
output = io.BytesIO()
status = api.translate_document(b"<p>rot</p>", output, filename="a.html", source_lang="EN", target_lang="DE")
assert status.billed_characters == 10 and output.getvalue().startswith(b"<p>") and output.getvalue().endswith(b"</p>")
try:
    api.get_glossary(glossary.glossary_id)
except deepl.exceptions.GlossaryNotFoundException:
    translations = [one.text for one in results]
""",
}
# Weblate without a database: units are in memory, and its caches are filled.
WEBLATE, NATIVE = (
    "weblate==5.14.3",
    ("borgbackup", "pycairo", "pygobject", "tesserocr"),
)  # packages that need system libraries
SETTINGS = """
from weblate.settings_example import *
DATABASES = {"default": {"ENGINE": "django.db.backends.dummy"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
SECRET_KEY, SITE_DOMAIN = "-", "localhost"
"""
MACHINERY = """
import os, sys
from unittest.mock import MagicMock
for name in ("cairo", "gi", "gi.repository"):  # for drawing
    sys.modules[name] = MagicMock()
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
from django.core.cache import cache
from weblate.lang.models import Language
from weblate.machinery.base import GlossaryDoesNotExistError
from weblate.machinery.deepl import DeepLTranslation
from weblate.machinery.libretranslate import LibreTranslateTranslation
from weblate.trans.models import Component, Project, Translation, Unit

en, de = Language(id=1, code="en"), Language(id=2, code="de")
project = Project(id=1, slug="project")
component = Component(id=1, slug="component", project=project, source_language=en, file_format="po")
translation = Translation(id=1, component=component, language=de)
flags = "python-format,python-brace-format"
units = [(text, Unit(id=1, translation=translation, source=text, flags=flags)) for text in texts]
found = {"refused": []}

def translations(terms):
    cache.set(project.get_glossary_tsv_cache_key(en, de), terms)
    results = machine._translate(*pair, units)
    return [results[text][0]["text"] for text in texts]

for kind, settings in (
    (LibreTranslateTranslation, {"url": url}),
    (DeepLTranslation, {"url": url + "/v2", "formality": "prefer_more", "context": "rot", "next_gen": True}),
):
    refused = kind.settings_form(kind, {**settings, "key": "wrong"})
    found["refused"] += [error for errors in refused.errors.values() for error in errors]
    form = kind.settings_form(kind, {**settings, "key": key})
    assert form.is_valid(), form.errors
    machine = kind(form.cleaned_data)
    pair = machine.get_languages(en, de)
    found[kind.__name__] = translations("rot\\tBaum")
assert len(machine.get_glossaries(use_cache=False)) == 1
found["changed"] = translations("rot\\tHund")
[glossary] = machine.get_glossaries(use_cache=False).values()
machine.delete_glossary(glossary)
assert machine.get_glossaries(use_cache=False) == {}
try:
    machine.delete_glossary(glossary)
except GlossaryDoesNotExistError:
    print(json.dumps(found))
"""
NODE = """
const { translate } = require("libretranslate");
(async () => {
  const translations = [];
  for (const query of texts) translations.push(await translate({ query, source: "en", target: "de", apiurl: url }));
  console.log(JSON.stringify(translations));
})();
"""


SLIDE = f"{HEAD}<p:sld {P} {A}><p:cSld><a:p><a:r><a:t>die Katze ist rot</a:t></a:r></a:p></p:cSld></p:sld>"
# `url` and `names` are given; the script must write the translation of each file into translated-NAME.
FILES = {
    "libretranslate-aio==0.1.3": """
import urllib.request
import libretranslate_aio as library
with library.LibreTranslate(base_url=url) as api:
    for name in names:
        made = api.translate_file(name, "en", "de")
        urllib.request.urlretrieve(made.translated_file_url, f"translated-{name}")
""",
    "deepl==1.32.0": """
import deepl
api = deepl.Translator("-", server_url=url)
for name in names:
    made = api.translate_document_from_filepath(name, f"translated-{name}", source_lang="EN", target_lang="DE")
    assert made.done and made.billed_characters > 0
""",
}


def output_of(package: str, script: str, folder: Path) -> str:
    """Run a script in a new environment that has this package. Skip the test if it cannot be installed."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=100)
    python = folder / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", package], capture_output=True, check=False)
    if installed.returncode:
        pytest.skip(f"{package} cannot be installed here")
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    with server(str(model), "--precision", "fp32") as (_, address):
        yield address


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    with Translator(model, precision="fp32") as translator:
        return ["\n".join(best for [best] in hypotheses(translator, *text.split("\n"))) for text in TEXTS]


@pytest.mark.parametrize("package", PYTHON)
def test_python_clients(package: str, address: str, expected: list[str], tmp_path: Path) -> None:
    script = f"import json\nurl, texts = {address!r}, {TEXTS!r}\n{PYTHON[package]}\nprint(json.dumps(translations))\n"
    assert json.loads(output_of(package, script, tmp_path)) == expected


@pytest.mark.parametrize("package", FILES)
def test_python_clients_translate_files(package: str, address: str, model: Path, tmp_path: Path) -> None:
    """A client gets the same bytes as `nmt translate` writes."""
    files = {
        "a.docx": docx(paragraph(run("rot "), run("und", "<w:b/>")) + paragraph(run("die Katze ist rot"))),
        "a.pptx": ooxml({"ppt/presentation.xml": f"{HEAD}<p:presentation {P}/>", "ppt/slides/slide1.xml": SLIDE}),
        "a.srt": b"1\n00:00:01,000 --> 00:00:02,000\ndie <i>Katze</i> rot\n\n2\n00:00:04,000 --> 00:00:05,000\nund\n",
        "a.html": b"<p>die <b>Katze</b> ist rot</p>\n",
        "a.odt": odf("<office:text><text:p>die <text:span>Katze</text:span> ist rot</text:p></office:text>"),
    }
    expected = dict[str, bytes]()
    for name, data in files.items():
        (source := tmp_path / name).write_bytes(data)
        command = ["translate", "-q", "--model", model, "--precision", "fp32", source, "-o", tmp_path / "expected"]
        subprocess.run([sys.executable, "-m", "nmt_cli", *command], cwd=ROOT, check=True, timeout=100)
        expected[name] = (tmp_path / "expected").read_bytes()
    script = f"import os\nos.chdir({str(tmp_path)!r})\nurl, names = {address!r}, {list(files)!r}\n{FILES[package]}"
    output_of(package, script, tmp_path / "client")
    for name, data in files.items():
        assert (tmp_path / f"translated-{name}").read_bytes() == expected[name] != data, name


@pytest.mark.timeout(900)
def test_weblates_machinery(model: Path, tmp_path: Path) -> None:
    """LibreTranslate and DeepL: settings, keys, batches, lines, placeholders ([X3X], <x id="3"></x>), glossaries."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True, timeout=100)
    python = tmp_path / "bin" / "python"
    listed = "import importlib.metadata as m; print(*m.requires('weblate'), sep='\\n')"
    try:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", WEBLATE], capture_output=True, check=True)
        all_ = subprocess.run([python, "-c", listed], capture_output=True, text=True, check=True).stdout.lower()
        needed = [each for each in all_.splitlines() if "extra ==" not in each and not each.startswith(NATIVE)]
        subprocess.run([python, "-m", "pip", "install", "-q", *needed], capture_output=True, check=True)
    except subprocess.CalledProcessError:
        pytest.skip("Weblate cannot be installed here")
    (tmp_path / "settings.py").write_text(SETTINGS)
    texts = ["der Hund %(name)s geht.", "rot & <b>und</b> %s", "die Katze", "der {name}\nist\n\n “rot”\n"]
    (tmp_path / "keys").write_text("a-key\n")
    with server(str(model), "--precision", "fp32", "--protect", "--api-key-file", str(tmp_path / "keys")) as (_, url):
        script = f"import json\nurl, texts, key = {url!r}, {texts!r}, 'a-key'\n{MACHINERY}"
        done = subprocess.run(
            [python, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["refused"]) == 2
    assert all("403" in error and "Invalid API key" in error for error in found["refused"])
    for name in ("LibreTranslateTranslation", "DeepLTranslation", "changed"):
        for source, text in zip(texts, found[name], strict=True):
            kept = re.compile(r"%(?:[(]name[)])?s|[{]name[}]|\n")
            assert kept.findall(text) == kept.findall(source)
            assert "[X" not in text
            assert "<x" not in text
    assert "Baum" in found["DeepLTranslation"][1]
    assert "Hund" in found["changed"][1]


def test_the_javascript_client(address: str, expected: list[str], tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    install = ["npm", "install", "libretranslate@1.0.1"]
    if subprocess.run(install, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("the package cannot be installed here")
    script = f"const url = {json.dumps(address)}, texts = {json.dumps(TEXTS)};\n{NODE}"
    done = subprocess.run(
        ["node", "-e", script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
