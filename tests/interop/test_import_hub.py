"""Import models from the Hugging Face hub, with a network and without."""

import errno
import functools
import shutil
from unittest.mock import Mock, call

import hub_server
import huggingface_hub
import pytest
import torch

from nmt_cli.interop import hub, importing
from nmt_cli.interop.importing import import_cached, import_model
from nmt_cli.system.errors import DownloadError, MissingError, OutputError
from nmt_cli.transformer.weights import load_model, load_tensors

pytest.importorskip("transformers")

from random_marian import random_marian


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory)
    return directory


def test_each_revision_has_its_own_cached_directory(tmp_path, monkeypatch):
    imported = []
    monkeypatch.setattr(importing, "import_model", lambda *arguments: imported.append(arguments))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ["owner/opus", "owner/opus@v1", "owner/opus@v2", "other/opus"]
    directories = [import_cached(name) for name in names]
    assert imported == list(zip(names, directories, strict=True))
    assert len(set(directories)) == 4
    assert {directory.parent for directory in directories} == {tmp_path / "nmt" / "models"}
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert import_cached("other/opus") == tmp_path / ".cache" / "nmt" / "models" / "other--opus"


def test_two_processes_may_import_a_model_at_once(tmp_path, saved, monkeypatch):
    """The slower one uses the import of the faster one. Other failures stay errors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def import_twice(_, directory):
        import_model(saved, directory)
        import_model(saved, directory)

    monkeypatch.setattr(importing, "import_model", import_twice)
    directory = import_cached("owner/opus")
    assert load_model(directory).recipe.name == saved.name
    monkeypatch.setattr(importing, "import_model", Mock(side_effect=OutputError("no room")))
    with pytest.raises(OutputError, match="no room"):
        import_cached("owner/other")


def test_the_manifest_and_the_log_name_the_commit(tmp_path, saved, monkeypatch, capsys):
    directory = shutil.copytree(saved, tmp_path / "hf")
    (directory / "tf_model.h5").write_bytes(b"not needed")
    client = huggingface_hub.snapshot_download
    with hub_server.serving("owner/opus", directory) as server:
        here = functools.partial(client, endpoint=server.url, cache_dir=tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.snapshot_download", here)
        for name, revision in (("owner/opus", server.commit), (f"owner/opus@{server.commit}", server.commit)):
            assert import_model(name, tmp_path / str(len(name))) == tmp_path / str(len(name))
            assert f"owner/opus at commit {revision}" in capsys.readouterr().err
        for name in ("owner/opus", f"owner/opus@{server.commit}"):
            loaded = load_model(tmp_path / str(len(name)))
            assert loaded.manifest["imported"] == loaded.recipe.name == f"owner/opus@{server.commit}"
        assert "translations that end within the limit are the same" in loaded.manifest["proof"]
        assert not [path for path in server.requests if "tf_model" in path]
        for name in ("owner/other", "owner/opus@branch"):
            with pytest.raises(DownloadError, match=f"no directory {name} here, and the model cannot be downloaded"):
                import_model(name, tmp_path / "new")
        (directory / "model.safetensors").unlink()
        server.commit = "f" * 40
        with pytest.raises(MissingError, match=r"has no weights"):
            import_model("owner/opus", tmp_path / "new")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("no name\nof the hub"), DownloadError, "downloaded from the hub: no name"),
        (OSError(errno.ENETUNREACH, "no network"), DownloadError, "from the hub: .*no network"),
        (OSError(errno.EIO, "a fault"), DownloadError, "from the hub: .*a fault"),
        (OSError(errno.ENOSPC, "the disk is full"), OSError, "the disk is full"),
    ],
)
def test_download_errors_are_one_line_except_a_full_disk(monkeypatch, error, kind, message):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=error))
    with pytest.raises(kind, match=message):
        hub.download("owner/opus")


def same(a, b):
    tensors = a.model.state_dict()
    return all(torch.equal(tensors[name], tensor) for name, tensor in b.model.state_dict().items())


def test_a_downloaded_model_needs_no_network(tmp_path, saved, monkeypatch, capsys):
    """The model has a pickle and no safetensors, like OPUS-MT's repositories."""
    directory, client = shutil.copytree(saved, tmp_path / "hf"), huggingface_hub.snapshot_download
    (directory / "model.safetensors").unlink()
    torch.save(load_tensors(saved / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model\n")
    (directory / "tf_model.h5").write_bytes(b"not needed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with hub_server.serving("owner/opus", directory) as server:
        here = functools.partial(client, endpoint=server.url, cache_dir=tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.snapshot_download", here)
        imported = load_model(import_model("owner/opus", tmp_path / "model"))
        assert not [path for path in server.requests if "tf_model" in path]
    huggingface_hub.close_session()  # an open connection would still be served
    capsys.readouterr()
    assert same(load_model(import_model("owner/opus", tmp_path / "again")), imported)
    cached = import_cached("owner/opus")
    assert capsys.readouterr().err.count("license: cc-by-4.0") == 2
    assert same(load_model(cached), imported)
    shutil.rmtree(tmp_path / "cache")
    assert import_cached("owner/opus") == cached
    assert capsys.readouterr().err == ""
    with pytest.raises(DownloadError, match="no directory owner/opus here"):
        import_model("owner/opus", tmp_path / "third")


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (None, "not named; see its page on the hub"),
        ("# A model\n", "not named; see its page on the hub"),
        ("---\nlanguage: de\n---\n", "not named; see its page on the hub"),
        ("---\nlicense: [\n---\n", "not named; see its page on the hub"),
        ("---\nlicense: apache-2.0\n---\n# A model\n", "apache-2.0"),
    ],
)
def test_the_license_of_a_model_card(tmp_path, card, expected):
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert hub.license_of(tmp_path) == expected


def test_only_the_preferred_weights_are_downloaded(tmp_path, monkeypatch):
    """Safetensors are preferred to pickles, and pickles to Marian's files. The optimizer's state is left out.

    The names keep their letter case.
    """
    for names in (["model.safetensors"], ["pytorch_model.bin"], ["model.npz"], []):
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for name in names:
            (directory / name).touch()
        monkeypatch.setattr("huggingface_hub.snapshot_download", client := Mock(return_value=str(directory)))
        assert hub.download("Owner/Name@V1" if names else "Owner/Name") == directory
        forms = [["model*.safetensors"], ["pytorch_model*.bin"], ["*.npz", "*.yml"]]
        expected = forms[: next((i for i, form in enumerate(forms, 1) if any(directory.glob(form[0]))), 3)]
        text, rest = ["*.json", "*.spm", "README.md"], {"ignore_patterns": "*.optimizer.npz"}
        rest |= {"revision": "V1" if names else None}
        assert client.call_args_list == [call("Owner/Name", allow_patterns=[*text, *form], **rest) for form in expected]
