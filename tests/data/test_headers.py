"""The first row of a CSV file: a header if it names the schema's columns, and never a record taken
for names."""

import gzip
import json
import tomllib

import numpy as np
import pytest

from lastiterate.data import Schema, encode, encode_features, read_table, schema_template
from lastiterate.data.data_frames import frame_table
from lastiterate.data.record_source import open_stream, stream
from lastiterate.errors import InputError
from support import call

RNG = np.random.default_rng(0)
TOWNS, JOBS = ("Ulm", "Bonn", "Kiel"), ("cook", "clerk")
WORDS = (
    "\n".join(
        f"{a},{b},{'yes' if a == 'Ulm' else 'no'}"
        for a, b in zip(RNG.choice(TOWNS, 300), RNG.choice(JOBS, 300), strict=True)
    )
    + "\n"
)
ENTRIES = {
    "target": "sick",
    "classes": ["no", "yes"],
    "columns": {
        "town": {"kind": "category", "values": list(TOWNS)},
        "job": {"kind": "category", "values": list(JOBS)},
    },
}
YEARS = {
    "target": "y",
    "classes": ["0", "1"],
    "columns": {name: {"kind": "number", "low": 0, "high": 9} for name in ("2019", "2020")},
}


@pytest.fixture
def bare(tmp_path):
    (tmp_path / "t.csv").write_text(WORDS)
    return tmp_path / "t.csv"


def test_a_record_of_text_is_never_taken_for_names(bare):
    for sample in (
        WORDS,
        "a,b,c\nd,e,f\ng,h,i\n",
        ",cook,yes\n3,clerk,no\n",
        "NA,cook,yes\n3,clerk,no\n",
        "old,cook,yes\n3,clerk,no\n4,cook,no\n",
    ):
        bare.write_text(sample)
        for attempt in (lambda: schema_template(bare), lambda: read_table(bare)):
            with pytest.raises(
                InputError, match=r"its first row may be a record.*header=True"
            ) as error:
                attempt()
            assert not any(cell in str(error.value) for cell in ("cook", "old", "Ulm", "Bonn"))
    code, out, err = call("schema", bare)
    assert (
        code == 2
        and "say --header yes" in err
        and "schema FILE --header no --columns NAME:KIND" in err
        and not out
    )


def test_a_schema_made_of_a_record_is_refused(bare):
    """Such a schema, whose names are cells, is not trained with: its first row stands below as
    well."""
    first = WORDS.split("\n")[0].split(",")
    entries = {
        "target": first[2],
        "classes": ["no", "yes"],
        "columns": dict(zip(first[:2], ENTRIES["columns"].values(), strict=True)),
    }
    schema = Schema.from_dict(entries)
    for attempt in (lambda: read_table(bare, schema), lambda: open_stream(bare, schema)):
        with pytest.raises(InputError, match="cells do not stand below it as well"):
            attempt()
    assert len(read_table(bare, Schema.from_dict({**entries, "header": "yes"}))) == 299, (
        "as somebody says"
    )


@pytest.mark.parametrize(
    "text",
    [
        "town,age\nUlm,3\nBonn,4\n",
        "day,town\n2020-01-01,Ulm\n2021-01-01,Bonn\n",
        "smokes,town\nTrue,Ulm\nFalse,Kiel\n",
        ",age,town\n0,,Ulm\n1,30,Kiel\n",
        "a,b\n",
    ],
)
def test_names_over_numbers_need_no_flag(bare, text):
    bare.write_text(text)
    assert f'[columns."{text.split(",")[0]}"]' in schema_template(bare)
    if text.count("\n") > 1:
        assert len(read_table(bare)) == 2


def test_what_is_said_is_kept_in_the_schema(bare):
    bare.write_text("town,job,sick\n" + WORDS)
    with pytest.raises(InputError, match="may be a record"):
        schema_template(bare)
    text = schema_template(bare, header=True, like=ENTRIES)
    schema = Schema.from_dict(tomllib.loads(text))
    assert schema.headed and Schema.from_dict(schema.to_dict()).headed and not schema.header
    assert len(read_table(bare, schema)) == len(read_table(bare, Schema.from_dict(ENTRIES))) == 300
    headless = Schema.from_dict(
        tomllib.loads(
            schema_template(
                bare, header=False, columns="town:category,job:category,sick", like=ENTRIES
            )
        )
    )
    assert headless.header == ("town", "job", "sick") and headless.headed is None
    with pytest.raises(InputError, match=r'header must be "yes", or a list of names'):
        Schema.from_dict({**ENTRIES, "header": "no"})
    with pytest.raises(InputError, match="header must be the names of the columns, in order"):
        Schema.from_dict(ENTRIES).with_header(False)
    assert headless.with_header(True).headed and not headless.with_header(True).header


@pytest.mark.parametrize(
    "pack", [lambda text: text.encode(), lambda text: gzip.compress(text.encode())]
)
def test_a_header_is_no_record_and_a_record_no_header(tmp_path, pack):
    """With and without a header, in memory and piece by piece, packed or not: the same 300 records."""
    schema = Schema.from_dict({**ENTRIES, "header": ["town", "job", "sick"]})
    other = "\n".join(",".join(line.split(",")[::-1]) for line in WORDS.strip().split("\n")) + "\n"
    wanted = None
    for name, text, known in (
        ("a", WORDS, schema),
        ("b", "town,job,sick\n" + WORDS, schema),
        ("c", "sick,job,town\n" + other, schema),
        ("d", "town,job,sick\n" + WORDS, Schema.from_dict(ENTRIES)),
    ):
        path = tmp_path / f"{name}.csv.gz"
        path.write_bytes(pack(text))
        found = encode(read_table(path, known), known)
        wanted = found if wanted is None else wanted
        pieces = [encode(table, known) for table in open_stream(path, known).tables(100)]
        for i in (0, 1):
            np.testing.assert_array_equal(found[i], wanted[i])
            np.testing.assert_array_equal(np.concatenate([piece[i] for piece in pieces]), wanted[i])
    (tmp_path / "new.csv").write_text("town,job\nUlm,cook\n")
    assert encode_features(read_table(tmp_path / "new.csv", schema), schema).shape == (1, 5)
    (tmp_path / "new.csv").write_text("town,work,sick\nUlm,cook,no\n")
    with pytest.raises(InputError, match=r"holds names of columns, and not all.*header=True"):
        read_table(tmp_path / "new.csv", schema)


def test_years_are_names_where_the_schema_says_so(bare):
    bare.write_text("2019,2020,y\n1,2,0\n3,4,1\n")
    with pytest.raises(InputError, match=r"first row holds a number.*header=True"):
        schema_template(bare)
    assert '[columns."2019"]' in schema_template(bare, header=True)
    assert read_table(bare, Schema.from_dict(YEARS)).cells["2019"] == ["1", "3"]
    bare.write_text("2019,2020,1\n1,2,0\n3,4,1\n")
    for schema in (YEARS, {**YEARS, "target": "1"}):
        named = Schema.from_dict({**schema, "header": [*YEARS["columns"], schema["target"]]})
        if schema["target"] == "y":
            assert len(read_table(bare, named)) == 3, "a record"
            continue
        with pytest.raises(InputError, match=r"which are numbers.*header=True.*header=False"):
            read_table(bare, named)
        assert (
            len(read_table(bare, named.with_header(True))) == 2
            and len(read_table(bare, named.with_header(False))) == 3
        )


def test_cells_of_a_record_are_not_shown_where_one_is_a_name(bare):
    """A cell that happens to be the name of a column makes no header."""
    bare.write_text("2019,secret,1\n5,other,0\n")
    with pytest.raises(InputError, match="misses the column '2020' of the schema") as error:
        read_table(bare, Schema.from_dict(YEARS))
    assert "secret" not in str(error.value)


def test_the_flag_reaches_every_command(tmp_path):
    (tmp_path / "t.csv").write_text("town,job,sick\n" + WORDS)
    code, out, err = call("schema", tmp_path / "t.csv", "--header", "maybe")
    assert code == 2 and "--header must be yes or no" in err
    assert (
        call("schema", tmp_path / "t.csv", "--header", "yes", "--out", tmp_path / "empty.toml")[0]
        == 0
    )
    (tmp_path / "like.toml").write_text(
        'target = "sick"\nclasses = ["no", "yes"]\n'
        + "".join(
            f'[columns.{name}]\nkind = "category"\nvalues = {json.dumps(entry["values"])}\n'
            for name, entry in ENTRIES["columns"].items()
        )
    )
    train = [
        "train",
        tmp_path / "t.csv",
        "--schema",
        tmp_path / "like.toml",
        "--epsilon",
        "3",
        "--algorithm",
        "forgetting-sgd",
        "--delta",
        "1e-4",
    ]
    code, _, err = call(*train, "--header", "no", "--out", tmp_path / "no")
    assert (
        code == 2
        and "--header must be the names of the columns" in err
        and not (tmp_path / "no").exists()
    )
    code, _, err = call(*train, "--header", "yes", "--out", tmp_path / "m")
    assert code == 0, err
    assert json.loads((tmp_path / "m" / "model.json").read_text())["schema"]["header"] == "yes"
    code, out, err = call("predict", tmp_path / "m", tmp_path / "t.csv", "--header", "yes")
    assert code == 0 and len(out.strip().split("\n")) == 301, err
    (tmp_path / "ids.txt").write_text("3\n")
    forget = [
        "forget",
        tmp_path / "m",
        tmp_path / "t.csv",
        "--remove",
        tmp_path / "ids.txt",
        "--epsilon",
        "1",
        "--delta",
        "1e-4",
    ]
    assert call(*forget, "--header", "no", "--out", tmp_path / "m2")[0] == 2
    code, _, err = call(*forget, "--header", "yes", "--out", tmp_path / "m2")
    assert code == 0, err
    code, _, err = call("train", "iris", "--epsilon", "3", "--header", "yes")
    assert code == 2 and "--header cannot be combined with a bundled set" in err


SPELT = Schema.from_dict(ENTRIES)


@pytest.mark.parametrize(
    "header, said",
    [
        ("Town,job,sick", "'town' of the schema; the file calls it 'Town': rename it"),
        (" TOWN ,job,sick", "'town' of the schema; the file calls it 'TOWN': rename it"),
        ("place,job,sick", "'town' of the schema; the file has place, job, sick; add it"),
        (
            "twon,job,sick",
            "'town' of the schema; did you mean 'twon'? Otherwise add it, or train with kind = "
            '"ignore" for it in the schema; the file has twon, job, sick',
        ),
        ("town,job,sikc", "got 'sikc'; did you mean 'sick'? Otherwise leave it out of the file"),
        ("town,job,Sick", "does not describe, got 'Sick'; the schema calls it 'sick': rename"),
        ("Town,JOB,Sick", "'JOB' is 'job', 'Sick' is 'sick', 'Town' is 'town' in the schema"),
    ],
)
def test_a_name_that_is_written_otherwise_is_named(bare, header, said):
    bare.write_text(f"{header}\n{WORDS}")
    frame = dict(zip(header.split(","), (["Ulm"], ["cook"], ["no"]), strict=True))
    for attempt in (
        lambda: encode(read_table(bare, SPELT), SPELT),
        lambda: list(stream(bare, SPELT).pieces(9)),
        lambda: encode_features(frame_table(frame, SPELT), SPELT),
    ):
        with pytest.raises(InputError) as refused:
            attempt()
        assert said in str(refused.value)


def test_names_are_listed_where_they_are_surely_names(bare):
    """One word of a record that is the name of a column shows none of the others."""
    bare.write_text(f"job,HIV,Kiel\n{WORDS}")
    with pytest.raises(InputError, match="misses the column 'town' of the schema") as refused:
        read_table(bare, SPELT)
    assert "HIV" not in str(refused.value) and "Kiel" not in str(refused.value)
    with pytest.raises(InputError, match="the file has job, HIV, Kiel"):
        read_table(bare, SPELT, header=True)
