"""Files of other programs that carry a release: ONNX, safetensors, skops, joblib, MLflow.

Each is read for the files of a model folder that it holds, which are then checked as a folder's.
Nothing in a file is executed. Of the rest of a file only hashes are compared, which the file states
itself: that finds damage and a changed part, and not a file that somebody wrote again as a whole.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickletools
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from lastiterate_check.check import once, parse, read, read_folder, unit_of
from lastiterate_check.run import BadInput, Body

NAMES = "weights.safetensors", "model.json", "certificate.json"
MORE = "manifest.json"
AGAIN = "lastiterate verify makes it again and compares, of a torch module the weights alone"
METADATA = 14
"""The field of an ONNX model that holds texts by name."""
Carried = tuple[dict[str, bytes], dict[str, str], str]
"""Files of a model folder, what the file states next to them, and what of the rest is not
compared."""


def number(data: bytes, at: int) -> tuple[int, int]:
    """A number of protobuf's form, seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            break
    return value, at


def fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The fields of a protobuf message: number, content where it has a length, and all bytes."""
    at = 0
    while at < len(data):
        begin, (tag, at) = at, number(data, at)
        size, at = number(data, at) if tag & 7 in (0, 2) else ({1: 8, 5: 4}[tag & 7], at)
        end = at + size if tag & 7 else at
        if end > len(data):
            raise ValueError("cut off")
        yield tag >> 3, data[at:end], data[begin:end]
        at = end


def read_onnx(data: bytes) -> Carried:
    """The metadata of an ONNX model; its graph has the hash that they state."""
    parts = list(fields(data))
    entries = [dict(x[:2] for x in fields(part)) for field, part, _ in parts if field == METADATA]
    texts = once("metadata", [(one[1].decode(), one[2].decode()) for one in entries])
    stated = {name.removeprefix("lastiterate."): text for name, text in texts.items()}
    files = {name: stated[name].encode() for name in NAMES}
    files[NAMES[0]] = base64.b64decode(stated[NAMES[0]], validate=True)
    graph = b"".join(raw for field, _, raw in parts if field != METADATA)
    if "graph_sha256" not in stated:
        return files, stated, f"the graph, of which it states no hash: {AGAIN}"
    if hashlib.sha256(graph).hexdigest() != stated["graph_sha256"]:
        raise BadInput("graph: is not the one whose hash the metadata state")
    rest = f"whether the graph, which has the hash that the file states, is that model's: {AGAIN}"
    return files, stated, rest


def read_safetensors(data: bytes) -> Carried:
    """The metadata of a safetensors file, and the file without them, which was certified."""
    (length,) = struct.unpack("<Q", data[:8])
    header = parse(data[8 : 8 + length].decode(), "header")
    stated = header.pop("__metadata__")
    plain = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    plain += b" " * (-len(plain) % 8)
    files = {name: stated[name].encode() for name in NAMES[1:]}
    files[NAMES[0]] = struct.pack("<Q", len(plain)) + plain + data[8 + length :]
    return files, stated, ""


def read_skops(data: bytes) -> Carried:
    """The members of a skops file, which packs none."""
    packed = zipfile.ZipFile(io.BytesIO(data))
    listed = packed.infolist()
    if any(one.compress_type for one in listed) or sum(one.file_size for one in listed) > len(data):
        raise ValueError("packed")
    members = once("zip", [(one.filename, packed.read(one)) for one in listed])
    others = ", ".join(sorted(set(members) - {*NAMES, MORE}))
    return members, {}, f"{others} (what skops makes of the files): {AGAIN}"


def read_joblib(data: bytes) -> Carried:
    """The bytes in a pickle, each behind its name; nothing is executed."""
    found, name = [], ""
    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, bytes):
            found.append((name, argument))
        name = argument if isinstance(argument, str) else name
    return once("pickle", found), {}, f"what the pickle executes: {AGAIN}, before you load it"


UNIT = r"a record of this run is (one unit with at most [1-9]\d{0,6} rows): epsilon is for .*"

READERS: dict[str, Callable[[bytes], Carried]] = {
    ".onnx": read_onnx,
    ".safetensors": read_safetensors,
    ".skops": read_skops,
    ".joblib": read_joblib,
}


def read_release(path: Path) -> tuple[Body, list[str]]:
    """The certificate of a model folder, of a file or MLflow model that carries one, or alone in a
    file; and what was compared with it."""
    if path.is_dir():
        flow = (path / "MLmodel").is_file()
        stored, lines = read_folder(path / "data" / "model" if flow else path)
        more = "not compared: MLmodel, and what it loads next to data/model: lastiterate verify"
        return stored, [*lines, *[more] * flow]
    if path.suffix not in READERS:
        return read(path), []
    try:
        found, stated, rest = READERS[path.suffix](path.read_bytes())
        files = {name: found[name] for name in (*NAMES, *{MORE} & set(found))}
    except (LookupError, TypeError, ValueError, EOFError, struct.error, zipfile.BadZipFile):
        raise BadInput(f"{path.name}: is no {path.suffix[1:]} file with a release in it") from None
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        stored, lines = read_folder(Path(folder))
    if not stored.get("weights_sha256") or not stored.get("model_sha256"):
        raise BadInput("certificate: names no weights and no model, which the file carries")
    name = (stored.get("stated") or {}).get("unit", {}).get("name", "")
    unit = unit_of(stored, name)[2].removesuffix(", as the loss takes it")
    said = filter(None, (re.fullmatch(UNIT, one) for one in stored.get("caveats") or ()))
    unit += "".join(f", by a caveat {found[1]}" for found in said)
    right = {name: json.dumps(stored.get(name)) for name in ("epsilon", "delta")}
    right |= {"adjacency": stored.get("adjacency"), "unit": unit}
    for name, text in right.items():
        if stated.get(name, text) != text:
            raise BadInput(f"metadata: {name} is not what the certificate says")
    lines.append("weights and model in the file are those that the certificate names")
    return stored, [*lines, *[f"not compared: {rest}"] * bool(rest)]
