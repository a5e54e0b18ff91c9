"""Illustrations are written one by one, and progress is of all of them."""

from papers.figures import illustrations


def test_every_picture_is_written(tmp_path, monkeypatch):
    def study(name):
        return lambda progress: progress(0.5, name) or {"picture": f"<svg>{name}</svg>\n"}

    monkeypatch.setattr(illustrations, "STUDIES", {"toy": (30.0, study("toy")), "filters": (10.0, study("filters"))})
    told = []
    written = illustrations.run(tmp_path / "new", lambda share, what: told.append((share, what)))
    assert [file.name for file in written] == ["toy.svg", "filters.svg"]
    assert written[0].read_text(encoding="utf-8") == "<svg>toy</svg>\n"
    assert told == [(0.375, "toy"), (0.875, "filters"), (1.0, "done")]
    assert illustrations.run(tmp_path) == [tmp_path / "toy.svg", tmp_path / "filters.svg"]
