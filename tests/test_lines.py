"""What validation, translate and score share: too long a source is cut, not a crash."""

import pytest
import torch

from nmt_cli import recipe
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.search import SearchSettings


def test_a_source_longer_than_the_model_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipe.Model(num_layers=1, d_model=16, d_ff=16, num_heads=2, d_k=8, d_v=8, max_length=12)
    torch.manual_seed(1)
    model = for_inference(Transformer(settings, 20), torch.float32)
    long, short = [5] * 100 + [EOS], [5] * 11 + [EOS]
    search = SearchSettings(beam=2, extra_length=4)
    cut, whole = translate_ids([model], torch.float32, [long, short], search)
    assert cut[0].ids == whole[0].ids  # of the same first pieces
    assert "1 sources were longer" in capsys.readouterr().err
