"""The OpenAPI description of the routes, for LibreTranslate's /spec."""

import re
from typing import Any

import nmt_cli

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
FILE: Schema = {"type": "string", "format": "binary"}
TEXTS: Schema = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
PAIR = {"source": TEXT, "target": TEXT}
LANGUAGES = {"source_lang": TEXT, "target_lang": TEXT}
ENTRIES = {"entries": TEXT, "entries_format": {"type": "string", "enum": ["tsv", "csv"]}}
DICTIONARIES = {"dictionaries": {"type": "array", "items": {"type": "object", "properties": {**LANGUAGES, **ENTRIES}}}}
MARKUP = {"type": "string", "enum": ["html", "xml"]}

# Method, path, summary, fields, and the names of required fields
ROUTES: tuple[tuple[str, str, str, Schema, tuple[str, ...]], ...] = (
    (
        "post",
        "/translate",
        "Translate texts",
        {
            "q": TEXTS,
            **PAIR,
            "format": {"type": "string", "enum": ["text", "html"]},
            "alternatives": NUMBER,
            "case": {"type": "string", "enum": ["auto", "off"]},
            "spelling": {"type": "string", "enum": ["auto", "off"]},
        },
        ("q", "source", "target"),
    ),
    ("post", "/detect", "Detect the language of a text", {"q": TEXTS}, ("q",)),
    ("post", "/translate_file", "Translate a file", {"file": FILE, **PAIR}, ("file", "source", "target")),
    ("get", "/download_file/{key}", "Download a translated file", {}, ()),
    ("post", "/suggest", "Suggest a better translation", {"q": TEXT, "s": TEXT, **PAIR}, ("q", "s", *PAIR)),
    ("get", "/languages", "List languages and their targets", {}, ()),
    ("get", "/frontend/settings", "Show settings", {}, ()),
    ("get", "/health", "Check that the server is running", {}, ()),
    ("get", "/spec", "Show this description", {}, ()),
    ("get", "/metrics", "Show Prometheus metrics", {}, ()),
    (
        "post",
        "/sentences",
        "Translate a text sentence by sentence, with word alignments",
        {"q": TEXT, **PAIR, "alternatives": NUMBER},
        ("q", "source", "target"),
    ),
    (
        "post",
        "/v2/translate",
        "Translate texts",
        {"text": TEXTS, **LANGUAGES, "glossary_id": TEXT, "tag_handling": MARKUP, "preserve_formatting": FLAG},
        ("text", "target_lang"),
    ),
    ("get", "/v2/languages", "List languages", {"type": {"type": "string", "enum": ["source", "target"]}}, ()),
    ("get", "/v2/usage", "Show the number of translated characters", {}, ()),
    ("get", "/v2/glossary-language-pairs", "List the language pairs that glossaries may have", {}, ()),
    ("get", "/v2/glossaries", "List glossaries", {}, ()),
    (
        "post",
        "/v2/glossaries",
        "Create a glossary",
        {"name": TEXT, **LANGUAGES, **ENTRIES},
        ("name", *LANGUAGES, "entries"),
    ),
    ("get", "/v2/glossaries/{key}", "Show a glossary", {}, ()),
    ("delete", "/v2/glossaries/{key}", "Delete a glossary", {}, ()),
    ("get", "/v2/glossaries/{key}/entries", "Show the terms of a glossary", {}, ()),
    ("get", "/v3/glossaries", "List glossaries", {}, ()),
    ("post", "/v3/glossaries", "Create a glossary", {"name": TEXT, **DICTIONARIES}, ("name", "dictionaries")),
    ("get", "/v3/glossaries/{key}", "Show a glossary", {}, ()),
    ("patch", "/v3/glossaries/{key}", "Rename a glossary, or add terms", {"name": TEXT, **DICTIONARIES}, ()),
    ("delete", "/v3/glossaries/{key}", "Delete a glossary", {}, ()),
    ("get", "/v3/glossaries/{key}/entries", "Show the terms of a dictionary", LANGUAGES, tuple(LANGUAGES)),
    (
        "put",
        "/v3/glossaries/{key}/dictionaries",
        "Replace a dictionary",
        {**LANGUAGES, **ENTRIES},
        (*LANGUAGES, "entries"),
    ),
    ("delete", "/v3/glossaries/{key}/dictionaries", "Delete a dictionary", LANGUAGES, tuple(LANGUAGES)),
    ("post", "/v2/document", "Upload a document", {"file": FILE, **LANGUAGES}, ("file", "target_lang")),
    ("post", "/v2/document/{id}", "Show the status of a document", {"document_key": TEXT}, ("document_key",)),
    ("post", "/v2/document/{id}/result", "Download a translated document", {"document_key": TEXT}, ("document_key",)),
)


def specification() -> Schema:
    """Return the OpenAPI document."""
    paths = dict[str, Schema]()
    for method, path, summary, fields, required in ROUTES:
        paths.setdefault(path, {})[method] = _operation(method, path, summary, fields, required)
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "deepl": {"type": "apiKey", "in": "header", "name": "Authorization"},
    }
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "nmt serve",
            "version": nmt_cli.__version__,
            "description": "Translation through the APIs of LibreTranslate and DeepL. "
            "Send the fields as JSON, as a form or in the query string.",
        },
        "paths": paths,
        "components": {"securitySchemes": schemes},
        "security": [{}, {"bearer": []}, {"deepl": []}],
    }


def _operation(method: str, path: str, summary: str, fields: Schema, required: tuple[str, ...]) -> Schema:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": TEXT} for name in re.findall(r"\{(\w+)\}", path)
    ]
    operation: Schema = {"summary": summary, "responses": _responses(path)}
    if method in ("get", "delete"):
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": each} for name, each in fields.items()
        ]
    elif fields:
        schema: Schema = {"type": "object", "properties": fields}
        if required:
            schema["required"] = list(required)
        kinds = (
            ["multipart/form-data"] if "file" in fields else ["application/json", "application/x-www-form-urlencoded"]
        )
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _responses(path: str) -> Schema:
    name = "message" if path.startswith(("/v2/", "/v3/")) else "error"
    schema = {"type": "object", "properties": {name: TEXT}, "required": [name]}
    error = {"description": "Error", "content": {"application/json": {"schema": schema}}}
    return {"2XX": {"description": "Success"}, "default": error}
