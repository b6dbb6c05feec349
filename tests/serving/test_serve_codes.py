"""Models that name one language differently, scripts of Chinese, and detected languages without a model."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("starlette")

from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import server
from nmt_cli.serving.database import Database
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import ServedModel
from nmt_cli.serving.pool import ModelPool
from nmt_cli.serving.server import ServeOptions
from nmt_cli.serving.service import Service
from nmt_cli.serving.texts import TextFormat
from nmt_cli.system.errors import StorageError, UsageError


def service_of(*pairs: str) -> Service:
    models = [ServedModel(Mock(), *pair.split(">")) for pair in pairs]
    return Service(ModelPool(models, Metrics(), queue=1), Metrics())


@pytest.mark.parametrize(
    ("pair", "route"),
    [
        (("en", "de"), "en-de"), (("en", "fr"), "eng-fr"), (("en", "es"), "en_US-es"), (("eng", "de"), "en-de"),
        (("en-US", "fr"), "eng-fr"), (("de", "en"), "deu-eng"), (("de", "fr"), "deu-eng-fr"),
    ],
)  # fmt: skip
def test_models_with_different_codes_for_a_language_are_found(pair: tuple[str, str], route: str) -> None:
    pool = service_of("en>de", "eng>fr", "en-US>es", "deu>eng").pool
    assert pool.find(*pair).name == route


def test_an_exact_target_has_priority() -> None:
    pool = service_of("en>zh-Hant", "en>de", "de>zh-Hans", "zh-Hans>en").pool
    assert pool.find("en", "zh-Hans").name == "en-de-zh_Hans"
    assert pool.find("en", "zh-Hant").name == "en-zh_Hant"
    with pytest.raises(Refusal, match="fr is not supported"):
        pool.find("en", "fr")


def test_one_script_of_chinese_is_translated_into_the_other() -> None:
    service = service_of("zh-Hans>en", "en>zh-Hant")
    assert not service.needs_no_translation("zh", "zt")
    assert not service.needs_no_translation("zh-CN", "zh-TW")
    assert service.needs_no_translation("en", "en-GB")
    assert service.needs_no_translation("zh", "zh-Hans")


def test_a_certainly_detected_language_is_not_replaced_by_one_with_a_model() -> None:
    service = service_of("en>de", "en>fr")

    def found(*detected: tuple[str, int]) -> Any:
        service.detector.detect = Mock(return_value=list(detected))
        return asyncio.run(service.source_language(["x"], "auto", "fr"))

    assert found(("de", 100), ("en", 0)) == ("de", 100)  # `find` then refuses
    assert found(("de", 55), ("en", 45)) == ("en", 45)
    assert found(("en", 100), ("de", 0)) == ("en", 100)


@pytest.mark.parametrize("fmt", ["html", "yaml"])
def test_a_translation_declares_the_shortest_code_of_its_language(fmt: str) -> None:
    source = {"html": '<html lang="en"><p>a</p></html>', "yaml": "en:\n  a: b c"}[fmt]
    parsed = TextFormat(fmt, language="fra").parse(source)
    written = parsed.translated([Aligned(unit, []) for unit in parsed.units])
    assert written == source.replace('"en"', '"fr"').replace("en:", "fr:")


def test_a_suggestions_file_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "s"):
        with pytest.raises(UsageError, match="--suggestions must be a file in an existing directory, not "):
            server.serve(ServeOptions(models=(), suggestions=path))


def test_a_service_closes_its_connections(tmp_path: Path) -> None:
    for database in (Database(tmp_path / "a.db"), Database()):
        pool = service_of("en>de").pool
        Service(pool, Metrics(), database=database).close()
        with pytest.raises(StorageError, match="closed"):
            database.read("SELECT 1")
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"], "the last connection removes the log of SQLite"


@pytest.mark.parametrize("timeout", [float("inf"), float("nan")])
def test_a_timeout_must_be_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(UsageError, match=r"--timeout must be a number of seconds, not (inf|nan)"):
        server.serve(ServeOptions(models=(), timeout=timeout))


def test_the_idle_time_must_be_a_number_of_seconds() -> None:
    with pytest.raises(UsageError, match="--idle must be a number of seconds, not nan"):
        server.serve(ServeOptions(models=(), idle=float("nan")))
