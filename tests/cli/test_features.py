"""``lastiterate features``: shapes are kept, images are mapped one by one, torch backbones from local files."""

import importlib.util

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.data.images import read_images
from lastiterate.data.random_convolution import features

RNG = np.random.default_rng(0)


def command(*words):
    return CliRunner().invoke(app, ["features", *map(str, words)])


def test_features_of_an_archive_are_trained_on(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(tmp_path / "digits.npz", images=(digits.images / 16).astype(np.float32), labels=digits.target)
    assert command(tmp_path / "digits.npz", "--out", tmp_path / "out.npz").exit_code == 0
    found = np.load(tmp_path / "out.npz")
    x, y = found["X"], found["y"]
    assert x.shape[0] == 1797 and (y == digits.target).all()
    assert np.linalg.norm(x, axis=1) == pytest.approx(1, abs=1e-5)
    from sklearn.linear_model import LogisticRegression

    score = LogisticRegression(C=100, max_iter=200).fit(x[:1000], y[:1000]).score(x[1000:], y[1000:])
    assert score > 0.9, "the map keeps what images show"


def test_every_image_is_mapped_by_itself_and_the_same_everywhere():
    images = RNG.random((5, 9, 12, 3)).astype(np.float32)
    together = features(images)
    for place in range(5):
        assert together[place] == pytest.approx(features(images[place:place + 1])[0], abs=1e-6)
    flat = features(np.full((1, 9, 12, 3), 0.5, np.float32))
    assert flat.shape == together[:1].shape and np.isfinite(flat).all()


def test_parts_of_an_archive_and_their_labels(tmp_path):
    parts = {f"{name}_images": RNG.integers(0, 256, (count, 6, 6), dtype=np.uint8)
             for name, count in (("train", 7), ("test", 3))}
    np.savez(tmp_path / "a.npz", **parts, train_labels=np.arange(7)[:, None], test_labels=np.arange(3)[:, None])
    assert [(each.part, each.pixels.shape, each.labels.shape) for each in read_images(tmp_path / "a.npz")] == [
        ("train", (7, 6, 6, 1), (7,)), ("test", (3, 6, 6, 1), (3,))]
    assert command(tmp_path / "a.npz", "--out", tmp_path / "b.npz").exit_code == 0
    assert set(np.load(tmp_path / "b.npz").files) == {"x_train", "y_train", "x_test", "y_test"}


@pytest.mark.parametrize("array", [np.ones((3, 4)), np.full((2, 3, 3), 2.0), np.ones((2, 3, 3, 9))])
def test_what_is_no_image_is_refused(tmp_path, array):
    np.savez(tmp_path / "a.npz", images=array)
    done = command(tmp_path / "a.npz", "--out", tmp_path / "b.npz")
    assert done.exit_code == 2 and done.stderr.startswith("error:") and not (tmp_path / "b.npz").exists()


def test_bad_flags_are_one_sentence(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.ones((2, 4, 4)))
    for words in (("--out", tmp_path / "a.npz"), ("--out", tmp_path / "a.txt"),
                  ("--out", tmp_path / "b.npz", "--weights", "w.pt"),
                  ("--out", tmp_path / "b.npz", "--backbone", tmp_path / "none.pt")):
        done = command(tmp_path / "a.npz", *words)
        assert done.exit_code == 2 and done.stderr.startswith("error:"), words


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_small_saved_module_is_a_backbone(tmp_path):
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)).eval()
    torch.jit.script(net).save(str(tmp_path / "net.pt"))
    images = RNG.random((70, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(70))
    done = command(tmp_path / "a.npz", "--out", tmp_path / "b.npz", "--backbone", tmp_path / "net.pt")
    assert done.exit_code == 0, done.output
    with torch.no_grad():
        expected = net(torch.from_numpy(images[:, None])).flatten(1).numpy()
    assert np.load(tmp_path / "b.npz")["X"] == pytest.approx(expected, abs=1e-5)
    (tmp_path / "bad.pt").write_bytes(b"no module")
    assert command(tmp_path / "a.npz", "--out", tmp_path / "c.npz", "--backbone", tmp_path / "bad.pt").exit_code == 2
    done = command(tmp_path / "a.npz", "--out", tmp_path / "c.npz", "--backbone", "torchvision:resnet18")
    assert done.exit_code == 2 and "--weights" in done.stderr
