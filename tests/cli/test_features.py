"""``lastiterate features``: shapes are kept, images are mapped one by one, torch backbones from
local files."""

import gzip
import importlib.util
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate
from lastiterate import InputError
from lastiterate.cli import app, data
from lastiterate.data import Array, Schema
from lastiterate.data.binary_files import read_images
from lastiterate.features import Patches, Scattering, SchemaTransformer

RNG = np.random.default_rng(0)


def command(*words):
    return CliRunner().invoke(app, ["features", *map(str, words)])


def test_features_of_an_archive_are_trained_on(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(
        tmp_path / "digits.npz",
        images=(digits.images / 16).astype(np.float32),
        labels=digits.target,
    )
    assert command(tmp_path / "digits.npz", "--out", tmp_path / "out.npz").exit_code == 0
    found = np.load(tmp_path / "out.npz")
    x, y = found["X"], found["y"]
    assert x.shape[0] == 1797 and (y == digits.target).all()
    assert np.linalg.norm(x, axis=1) == pytest.approx(1, abs=1e-5)
    from sklearn.linear_model import LogisticRegression

    score = (
        LogisticRegression(C=100, max_iter=200).fit(x[:1000], y[:1000]).score(x[1000:], y[1000:])
    )
    assert score > 0.9, "the map keeps what images show"


@pytest.mark.filterwarnings("ignore")
def test_train_finds_the_schema_beside_the_rows_with_their_norm(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(
        tmp_path / "digits.npz",
        images=(digits.images[:600] / 16).astype(np.float32),
        labels=digits.target[:600],
    )
    assert command(tmp_path / "digits.npz", "--out", tmp_path / "f.npz").exit_code == 0
    for more, code in (((), 2), (("--classes", ",".join("0123456789")), 0)):
        done = CliRunner().invoke(
            app,
            [
                "train",
                str(tmp_path / "f.npz"),
                "--epsilon",
                "8",
                "--algorithm",
                "noisy-gd",
                "--out",
                str(tmp_path / "model"),
                *more,
            ],
        )
        assert done.exit_code == code, done.stderr
        assert code == 0 or "schema leaves public facts open, got 'classes'" in done.stderr
    model = lastiterate.load(tmp_path / "model")
    assert model.run.loss.row_norm == 1.0 and model.schema.array == Array(-1, 1, norm=1.0)
    assert lastiterate.verify(tmp_path / "model").holds
    before = (tmp_path / "f.toml").read_text()
    (tmp_path / "f.npz").unlink()
    assert command(tmp_path / "digits.npz", "--out", tmp_path / "f.npz").exit_code == 2
    assert (tmp_path / "f.toml").read_text() == before and not (tmp_path / "f.npz").exists()


def test_the_norm_of_an_array_bounds_its_rows_and_no_curve_of_them():
    rows = np.random.default_rng(0).uniform(-2, 2, (50, 9)).astype(np.float32)
    for low, high, norm in ((-2, 2, 3.0), (-2, 2, None), (-2, 2, 100.0)):
        schema = Schema(array=Array(low, high, norm=norm), classes=("0", "1"))
        made = SchemaTransformer(schema).fit(rows)
        longest = min(3.0, (norm or 100.0) / 2)
        assert made.row_norm_ == longest
        found = np.linalg.norm(made.transform(rows), axis=1)
        assert found.max() <= longest * (1 + 1e-6) and (norm != 3.0 or found.max() > 1.49)
        curved = SchemaTransformer(schema, features="curves").fit(rows)
        assert curved.row_norm_ == 3.0 and np.linalg.norm(
            curved.transform(rows), axis=1
        ) == pytest.approx(3.0)
        assert Schema.from_dict(schema.to_dict()) == schema
    for low, high, norm in ((0, 2, 1.0), (-2, 2, 0.0), (-2, 2, float("nan")), (-2, 2, "1")):
        with pytest.raises(InputError, match="norm must be a positive number"):
            Array(low, high, norm=norm)


def test_damaged_arrays_and_missing_folders_are_refused_before_any_work(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 8, 8)))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:400])
    for name, out in (("text.npy", "b.npz"), ("cut.npy", "b.npz"), ("a.npy", "none/b.npz")):
        done = command(tmp_path / name, "--out", tmp_path / out)
        assert done.exit_code == 2 and done.stderr.startswith("error: ") and not done.stdout
    assert command(tmp_path / "a.npy", "--out", tmp_path / "b.npz").exit_code == 0


def test_scattering_is_the_backbone_unless_another_is_named(tmp_path):
    images = RNG.integers(0, 256, (5, 9, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images)
    done = command(tmp_path / "a.npz", "--out", tmp_path / "b.npz")
    assert (
        done.exit_code == 0 and "5 of 972 features, largest norm 1 by construction" in done.stdout
    )
    assert (np.load(tmp_path / "b.npz")["X"] == Scattering().apply(images)).all()


def test_patches_are_a_backbone_with_mirror_images_for_colour(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Patches, "for_budget", classmethod(lambda cls, fields, resolved: small(fields[0].shape))
    )

    def small(shape):
        return Patches(filters=12, axes=40, mirrored=shape[-1] == 3)

    images = RNG.integers(0, 256, (5, 9, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(5))
    done = command(tmp_path / "a.npz", "--out", tmp_path / "b.npz", "--backbone", "patches")
    assert done.exit_code == 0 and "5 of 40 features, largest norm 1 by construct" in done.stdout
    assert (np.load(tmp_path / "b.npz")["X"] == small((9, 12, 3)).apply(images)).all()
    assert "norm = 1" in (tmp_path / "b.toml").read_text()
    np.savez(tmp_path / "c.npz", images=images[:, :7])
    done = command(tmp_path / "c.npz", "--out", tmp_path / "d.npz", "--backbone", "patches")
    assert done.exit_code == 2 and "sides of 8 to 96 pixels" in " ".join(done.stderr.split())
    assert not (tmp_path / "d.npz").exists()


def test_parts_of_an_archive_and_their_labels(tmp_path):
    parts = {
        f"{name}_images": RNG.integers(0, 256, (count, 8, 9), dtype=np.uint8)
        for name, count in (("train", 7), ("test", 3))
    }
    np.savez(
        tmp_path / "a.npz",
        **parts,
        train_labels=np.arange(7)[:, None],
        test_labels=np.arange(3)[:, None],
    )
    assert [
        (each.part, next(each.pieces(9)).shape, each.labels.shape)
        for each in read_images(tmp_path / "a.npz")
    ] == [("train", (7, 8, 9, 1), (7,)), ("test", (3, 8, 9, 1), (3,))]
    assert command(tmp_path / "a.npz", "--out", tmp_path / "b.npz").exit_code == 0
    assert set(np.load(tmp_path / "b.npz").files) == {"x_train", "y_train", "x_test", "y_test"}


@pytest.mark.parametrize("sides", [(16, 4), (28, 20)])
def test_images_of_an_idx_file_have_the_sides_that_it_states(tmp_path, sides):
    images = RNG.integers(0, 256, (3, *sides), dtype=np.uint8)
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(
        bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes() + images.tobytes()
    )
    (found,) = read_images(path)
    pixels = np.concatenate([*found.pieces(2)])
    assert (pixels == (images / np.float32(255))[..., None]).all()


@pytest.mark.parametrize(
    "array", [np.ones((3, 4)), np.full((2, 3, 3), 2.0), np.ones((2, 9, 9, 9)), np.ones((2, 7, 40))]
)
def test_what_is_no_image_is_refused(tmp_path, array):
    np.savez(tmp_path / "a.npz", images=array)
    done = command(tmp_path / "a.npz", "--out", tmp_path / "b.npz")
    assert (
        done.exit_code == 2
        and done.stderr.startswith("error:")
        and not (tmp_path / "b.npz").exists()
    )


def test_bad_flags_are_one_sentence(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.ones((2, 8, 8)))
    for words in (
        ("--out", tmp_path / "a.npz"),
        ("--out", tmp_path / "a.txt"),
        ("--out", tmp_path / "b.npz", "--weights", "w.pt"),
        ("--out", tmp_path / "b.npz", "--backbone", tmp_path / "none.pt"),
        ("--out", tmp_path / "b.npz", "--backbone", "random-convolution"),
    ):
        done = command(tmp_path / "a.npz", *words)
        assert done.exit_code == 2 and done.stderr.startswith("error:"), words


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_small_saved_module_is_a_backbone(tmp_path):
    import torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)
    ).eval()
    torch.jit.script(net).save(str(tmp_path / "net.pt"))
    images = RNG.random((70, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(70))
    done = command(
        tmp_path / "a.npz", "--out", tmp_path / "b.npz", "--backbone", tmp_path / "net.pt"
    )
    assert done.exit_code == 0, done.output
    with torch.no_grad():
        expected = net(torch.from_numpy(images[:, None])).flatten(1).numpy()
    assert np.load(tmp_path / "b.npz")["X"] == pytest.approx(expected, abs=1e-5)
    (tmp_path / "bad.pt").write_bytes(b"no module")
    assert (
        command(
            tmp_path / "a.npz", "--out", tmp_path / "c.npz", "--backbone", tmp_path / "bad.pt"
        ).exit_code
        == 2
    )
    done = command(
        tmp_path / "a.npz", "--out", tmp_path / "c.npz", "--backbone", "torchvision:resnet18"
    )
    assert done.exit_code == 2 and "--weights" in done.stderr


class Listed:
    """What the loader asks of torchvision and of timm: here a small network instead of theirs."""

    def __init__(self, torch):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.pretrained_cfg = {
                    "input_size": (3, 12, 12),
                    "mean": (0.5, 0.4, 0.3),
                    "std": (0.2, 0.3, 0.4),
                }
                self.body = torch.nn.Sequential(
                    torch.nn.Conv2d(3, 4, 3),
                    torch.nn.ReLU(),
                    torch.nn.AdaptiveAvgPool2d(1),
                    torch.nn.Flatten(),
                )
                self.fc = torch.nn.Linear(4, 10)

            def forward(self, x):
                return self.fc(self.body(x))

            def reset_classifier(self, classes):
                self.fc = torch.nn.Identity()

        self.net, self.models = Net, self

    def list_models(self):
        return ["small"]

    def get_model(self, name, weights):
        assert weights is None, "nothing is downloaded"
        return self.net()

    def create_model(self, name, pretrained):
        assert pretrained is False, "nothing is downloaded"
        return self.net()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("library", "side", "mean", "std"),
    [
        ("torchvision", 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("timm", 12, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ],
)
def test_a_named_backbone_with_saved_weights(tmp_path, monkeypatch, library, side, mean, std):
    """The whole state is loaded, the head taken off, images resized and normalised as the library
    says."""
    import torch
    from safetensors.torch import save_file

    listed = Listed(torch)
    monkeypatch.setitem(sys.modules, library, listed)
    saved = listed.net()
    torch.save(saved.state_dict(), tmp_path / "net.pt")
    save_file(saved.state_dict(), tmp_path / "net.safetensors")
    images = RNG.random((3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images)
    part = torch.nn.functional.interpolate(
        torch.from_numpy(images[:, None]), (side, side), mode="bilinear"
    )
    part = (part.expand(-1, 3, -1, -1) - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[
        :, None, None
    ]
    with torch.no_grad():
        expected = saved.body(part).numpy()
    for place, weights in enumerate(("net.pt", "net.safetensors")):
        done = command(
            tmp_path / "a.npz",
            "--out",
            tmp_path / f"{place}.npz",
            "--backbone",
            f"{library}:small",
            "--weights",
            tmp_path / weights,
        )
        assert done.exit_code == 0, done.output
        assert np.load(tmp_path / f"{place}.npz")["X"] == pytest.approx(expected, abs=1e-5)
    torch.save({"fc.bias": torch.zeros(10)}, tmp_path / "part.pt")
    for backbone, weights in (
        (f"{library}:other", "net.pt"),
        (f"{library}:small", "part.pt"),
        (f"{library}:small", "none.pt"),
    ):
        done = command(
            tmp_path / "a.npz",
            "--out",
            tmp_path / "c.npz",
            "--backbone",
            backbone,
            "--weights",
            tmp_path / weights,
        )
        assert (
            done.exit_code == 2
            and done.stderr.startswith("error:")
            and not (tmp_path / "c.npz").exists()
        )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_library_that_is_not_there_is_named(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", images=np.ones((2, 4, 4)))
    monkeypatch.setitem(sys.modules, "timm", None)
    done = command(
        tmp_path / "a.npz",
        "--out",
        tmp_path / "b.npz",
        "--backbone",
        "timm:small",
        "--weights",
        "w.pt",
    )
    assert done.exit_code == 2 and "lastiterate[vision]" in done.stderr
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator timm::x does not exist')")
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(tmp_path)
    done = command(
        tmp_path / "a.npz",
        "--out",
        tmp_path / "b.npz",
        "--backbone",
        "timm:small",
        "--weights",
        "w.pt",
    )
    assert (
        done.exit_code == 2
        and "fits the torch" in done.stderr
        and "operator timm::x" in done.stderr
    )


# Images that are read, and rows that are written, in pieces.

PICTURES = RNG.integers(0, 256, (11, 8, 9, 3), dtype=np.uint8)


@pytest.fixture
def few(monkeypatch):
    """At most four images are mapped at once; their sizes, as they come."""
    mapped, plain = [], data._map_images
    monkeypatch.setattr(data, "MOST", 5)
    monkeypatch.setattr(data, "TOGETHER", 2)

    def count(name, images):
        mapped.append(len(images))
        return plain(name, images)

    monkeypatch.setattr(data, "_map_images", count)
    return mapped


def write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(head + array.tobytes())


WRITTEN = {
    "npy": ("a.npy", lambda path: np.save(path, PICTURES)),
    "columns": ("a.npy", lambda path: np.save(path, np.asfortranarray(PICTURES))),
    "numbers": ("a.npy", lambda path: np.save(path, PICTURES / 255)),
    "archive": ("a.npz", lambda path: np.savez(path, images=PICTURES, other=np.ones(3))),
    "packed": ("a.npz", lambda path: np.savez_compressed(path, X=PICTURES)),
    "columns in an archive": (
        "a.npz",
        lambda path: np.savez(path, x=np.asfortranarray(PICTURES)),
    ),
    "idx": ("a-images-idx4-ubyte.gz", lambda path: write_idx(path, PICTURES)),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_rows_of_pieces_are_those_of_all_images(tmp_path, few, form):
    name, write = WRITTEN[form]
    write(tmp_path / name)
    done = command(tmp_path / name, "--out", tmp_path / "out.npz")
    assert done.exit_code == 0 and "11 of 972 features, largest norm 1 by" in done.stdout
    assert few == [4, 4, 3]
    with np.load(tmp_path / "out.npz") as found:
        assert found.files == ["X"] and found["X"].dtype == np.float32
        np.testing.assert_array_equal(found["X"], Scattering().apply(PICTURES))


def test_pieces_follow_from_the_memory():
    assert data._count_at_once((10**6, 28, 28, 1), 1e12) == 1024
    assert data._count_at_once((10**6, 64, 64, 3), 1e12) == 640
    assert data._count_at_once((10**6, 64, 64, 3), 5e8) == 576
    assert data._count_at_once((10**6, 512, 512, 3), 5e8) == 9
    assert data._count_at_once((10**6, 2048, 2048, 4), 5e8) == 1


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_memory_does_not_grow_with_the_images(tmp_path, monkeypatch, form):
    """16 MB of bytes, which are 66 MB of pixels, in a fraction of either."""
    images = np.zeros((4000, 64, 64), np.uint8)
    images += np.arange(4000, dtype=np.uint8)[:, None, None]
    write = np.save if form == "npy" else np.savez_compressed
    write(tmp_path / f"a.{form}", images)
    monkeypatch.setattr(data, "MOST", 64)
    monkeypatch.setattr(data, "_map_images", lambda name, part: part.mean(axis=(1, 2)))
    command(tmp_path / f"a.{form}", "--out", tmp_path / "warm.npz")
    tracemalloc.start()
    try:
        done = command(tmp_path / f"a.{form}", "--out", tmp_path / "out.npz", "--memory", "1GB")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.exit_code == 0 and peak < 8e6
    rows = np.load(tmp_path / "out.npz")[{"npy": "X", "npz": "X"}[form]]
    np.testing.assert_allclose(rows[:, 0], np.arange(4000) % 256 / 255, atol=1e-6)


def spoil_pixel(path):
    array = PICTURES / 255
    array[-1, 0, 0, 0] = np.nan
    np.save(path, array)


def cut_member(path):
    with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as file:
        head = {"descr": "|u1", "fortran_order": False, "shape": PICTURES.shape}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(PICTURES.tobytes()[:-1])


def lengthen_member(path):
    with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as file:
        np.lib.format.write_array(file, PICTURES)
        file.write(b"more")


def write_objects(path):
    np.savez(path, images=PICTURES.astype(object))


def damage_member(path):
    np.savez(path, images=PICTURES)
    content = bytearray(path.read_bytes())
    content[content.index(PICTURES.tobytes()[:64]) + 2000] ^= 1
    path.write_bytes(content)


BAD = {
    "a pixel of the last image": ("a.npy", spoil_pixel, "must be bytes, or numbers in [0, 1]"),
    "an array that is cut off": ("a.npz", cut_member, "complete .npz archive"),
    "an array with more behind it": ("a.npz", lengthen_member, "complete .npz archive"),
    "objects": ("a.npz", write_objects, "complete .npz archive"),
    "a byte that changed": ("a.npz", damage_member, "complete .npz archive"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_images_are_refused_before_any_is_mapped(tmp_path, few, what):
    name, write, why = BAD[what]
    write(tmp_path / name)
    done = command(tmp_path / name, "--out", tmp_path / "out.npz")
    assert done.exit_code == 2 and why in " ".join(done.stderr.split()) and not done.stdout
    assert not few and [path.name for path in tmp_path.iterdir()] == [name]


def test_rows_of_a_plain_array_are_trained_on_in_pieces(tmp_path, few):
    """``train`` streams .npy files, and no archives."""
    images, labels = np.tile(PICTURES, (30, 1, 1, 1)), np.arange(330) % 2
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    assert command(tmp_path / "a.npz", "--out", tmp_path / "f.npy").exit_code == 0
    rows = np.load(tmp_path / "f.npy")
    np.testing.assert_array_equal(rows, Scattering().apply(images))
    np.testing.assert_array_equal(np.load(tmp_path / "f.labels.npy"), labels)
    train = ("train", tmp_path / "f.npy", "--epsilon", 8, "--classes", "0,1", "--stream")
    done = CliRunner().invoke(
        app, [*map(str, train), "--algorithm", "noisy-gd", "--out", str(tmp_path / "model")]
    )
    assert done.exit_code == 0, done.output
    assert lastiterate.load(tmp_path / "model").features == 972
    # nothing is replaced, the labels neither, and one array holds one set
    (tmp_path / "g.labels.npy").write_text("mine")
    done = command(tmp_path / "a.npz", "--out", tmp_path / "g.npy")
    assert done.exit_code == 2 and "g.labels.npy" in done.stderr
    np.savez(tmp_path / "b.npz", train_images=images, test_images=images)
    done = command(tmp_path / "b.npz", "--out", tmp_path / "h.npy")
    assert done.exit_code == 2 and "must end in .npz where a file holds 2 sets" in done.stderr
    assert not list(tmp_path.glob("h.*"))


@pytest.mark.parametrize("out", ["out.npz", "out.npy"])
@pytest.mark.parametrize("how", ["changed", "stopped", "broken", "taken"])
def test_work_that_ends_early_leaves_nothing(tmp_path, monkeypatch, how, out):
    np.save(tmp_path / "a.npy", PICTURES)
    np.save(tmp_path / "a.labels.npy", np.arange(11))
    before = {path.name for path in tmp_path.iterdir()} | ({out} if how == "taken" else set())

    def end(name, images):
        if how == "taken":
            (tmp_path / out).write_text("mine")
        elif how == "changed":
            np.save(tmp_path / "a.npy", PICTURES[:, :, ::-1])
        elif how == "stopped":
            raise KeyboardInterrupt
        else:
            raise OSError(28, "No space left on device")
        return Scattering().apply(images)

    monkeypatch.setattr(data, "_map_images", end)
    done = command(tmp_path / "a.npy", "--out", tmp_path / out)
    assert done.exit_code != 0 and not done.stdout
    said = {"changed": "changed while it was read", "broken": "No space left", "taken": "exist"}
    assert said.get(how, "") in " ".join(done.stderr.split())
    assert {path.name for path in tmp_path.iterdir()} == before
    assert how != "taken" or (tmp_path / out).read_text() == "mine"


def test_the_limits_of_memory_and_of_packed_files_can_be_raised(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", images=PICTURES, labels=np.arange(11))
    np.savez(tmp_path / "b.npz", images=PICTURES, labels=np.arange(11))
    small = ("--unpacked-limit", 1000)
    done = command(tmp_path / "a.npz", "--out", tmp_path / "out.npz", *small)
    assert done.exit_code == 2 and "--unpacked-limit BYTES" in " ".join(done.stderr.split())
    more = ("--unpacked-limit", 10_000)
    assert command(tmp_path / "a.npz", "--out", tmp_path / "out.npz", *more).exit_code == 0
    # what is not packed is as large as its file
    assert command(tmp_path / "b.npz", "--out", tmp_path / "more.npz", *small).exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "more.npz")["y"], np.arange(11))
    done = command(tmp_path / "b.npz", "--out", tmp_path / "none.npz", "--memory", "1MB")
    assert done.exit_code == 2 and "--memory must be at least 1000 MB" in done.stderr
