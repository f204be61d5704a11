"""Files of tables as other programs write them, and what is no table."""

import os

import numpy as np
import pandas as pd
import pytest

from pinfactory.tables import Encoding, no_number, read_frame, write_frame

FRAME = pd.DataFrame(
    {"size": [1.5, -2.25, 1000.0], "colour": ["röd, blå", "grün", "–"], "n": [3, 4, 5]}
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoding": "utf-8-sig"},
        {"sep": ";"},
        {"sep": ";", "decimal": ","},
        {"sep": "\t"},
        {"sep": "|"},
    ],
    ids=str,
)
def test_separators_and_marks_of_other_programs_are_found(tmp_path, options):
    FRAME.to_csv(tmp_path / "a.csv", index=False, **options)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.csv"), FRAME)


def test_a_column_alone_and_names_without_quotes_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("size\n1\n2\n")
    assert read_frame(tmp_path / "a.csv")["size"].tolist() == [1, 2]
    (tmp_path / "a.txt").write_text("size colour\n1 a\n2 b\n")
    assert read_frame(tmp_path / "a.txt")["colour"].tolist() == ["a", "b"]


def test_two_columns_of_one_name_are_refused(tmp_path):
    # pandas would call the second "wage.1", and predict the target from itself.
    for names in ("wage,wage,age", "wage, wage,age", "wage;age;wage"):
        (tmp_path / "a.csv").write_text(f"{names}\n" + "1,2,3\n" * 3)
        with pytest.raises(ValueError, match=r"a\.csv must have a name for each .* 'wage' twice"):
            read_frame(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", "stadt,n\nKöln,1\n".encode("latin-1"), "must be text in UTF-8"),
        ("a.csv", "stadt,n\nKöln,1\n".encode("utf-16"), "must be text in UTF-8"),
        ("a.csv", b"\n\n", "no table of comma-separated values"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
        ("a.csv", b'a,b\n1,"2\n', "no table of comma-separated values"),
        ("a.csv.gz", b"a,b\n1,2\n", "cannot be unpacked"),
        ("a.zip", b"a,b\n1,2\n", "cannot be unpacked"),
        ("a.parquet", b"a,b\n1,2\n", "no table of Parquet"),
    ],
)
def test_what_is_no_table_is_refused_by_its_name(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=told) as error:
        read_frame(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a file, but is a folder"):
        read_frame(tmp_path)


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_frame(FRAME, tmp_path / "a.csv")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_frame(FRAME.head(1), tmp_path / "a.csv")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.csv"), FRAME)
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_column_of_numbers_with_some_text_is_named():
    numbers = [*map(str, np.arange(50) / 7.0)]
    frame = pd.DataFrame({"size": [*numbers, "n.a.", "n.a."] * 2, "n": range(104)})
    with pytest.warns(UserWarning, match=r"column 'size' has numbers but for .* 'n\.a\.', so"):
        encoding = Encoding.learn(frame)
    assert encoding.columns[0].kind == "left out"
    assert no_number(np.array([*numbers, "?", "n.a.", "n.a."])) == "n.a."
    assert no_number(np.array(numbers)) == ""
    assert no_number(np.array(["1", "a", "b"])) == ""
    # A level for each: nothing is lost.
    Encoding.learn(pd.DataFrame({"size": ["1", "2", "3", "many"] * 20}))
    # Few, and meant so.
    Encoding.learn(pd.DataFrame({"struck": ["1"] * 150 + ["2-10"] * 40 + ["0"] * 2}))


def test_times_of_several_zones_become_those_of_one(tmp_path):
    told = ["2024-03-01T05:00:00+01:00", "2024-07-01T06:30:00+02:00"] * 10
    pd.DataFrame({"at": told, "n": range(20)}).to_csv(tmp_path / "a.csv", index=False)
    encoding = Encoding.learn(read_frame(tmp_path / "a.csv"))
    (hour,) = (column for column in encoding.columns if column.part == "hour")
    assert (hour.zone, hour.low, hour.high) == ("UTC", 4.0, 4.5)
