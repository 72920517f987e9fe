import pytest


@pytest.fixture
def point_hub(monkeypatch, tmp_path):
    """`point_hub(url)`: lets huggingface_hub ask that server."""
    library = pytest.importorskip("huggingface_hub")
    pytest.importorskip("huggingface_hub.file_download")

    def point(url):
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(library.constants, "ENDPOINT", url)
        monkeypatch.setattr(library.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(
            library.file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False
        )
        monkeypatch.setattr(library.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    return point
