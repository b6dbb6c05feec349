"""Compile the templates of pages once instead of at every page, for tests that make many pages."""

import contextlib
import functools
from collections.abc import Iterator
from types import CodeType

import pytest
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from nmt_cli.reporting import page


class Compiled(BytecodeCache):
    """Keeps the code of templates, by name and text, in memory."""

    def __init__(self) -> None:
        self.code = dict[tuple[str, str], CodeType | None]()

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self.code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.code[bucket.key, bucket.checksum] = bucket.code


COMPILED = Compiled()


@contextlib.contextmanager
def compiled_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "Environment", functools.partial(Environment, bytecode_cache=COMPILED))
        yield
