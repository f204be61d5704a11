"""Files of tables: CSV and Parquet."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

from pinfactory.persistence import atomic_write

# What may stand between two values, the most usual first.
SEPARATORS = (",", ";", "\t", "|")


def read_frame(path: str | Path) -> Any:
    """Read a CSV or Parquet file into a frame of pandas.

    The values of a CSV file may be separated by commas, semicolons (and then have decimal commas),
    tabs or bars. Text columns all of whose values are ISO dates become dates; a first column
    without a name, or named ``rownames``, that counts the rows is left out.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("Reading tables needs pip install 'pinfactory[tables]'.") from error
    path = Path(path)
    if not path.is_file():
        told = f"{str(path)!r} must be a file, but is a folder" if path.is_dir() else ""
        raise FileNotFoundError(told or f"there is no file {str(path)!r}")
    ending = path.suffix.lower()
    if ending in (".parquet", ".pq"):
        try:
            frame = pd.read_parquet(path)
        except (ValueError, OSError) as error:  # of Arrow, some without the name of the file
            raise ValueError(f"{path} is no table of Parquet: {error}") from error
    elif ending in (".csv", ".tsv", ".txt", ".gz", ".zip", ".xz", ".bz2"):
        try:
            frame = _read_csv(path)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} must be text in UTF-8, but is not: save it as CSV UTF-8, or convert it "
                "with iconv"
            ) from error
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            raise ValueError(f"{path} is no table of comma-separated values: {error}") from error
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from error
    else:
        raise ValueError(f"a table must end in .csv, .tsv or .parquet, but got {str(path)!r}")
    frame.columns = [str(name).strip() for name in frame.columns]
    for name in frame.columns:
        if frame[name].dtype == "str" or frame[name].dtype == object:
            frame[name] = _parsed(frame[name])
    first = frame.columns[0]
    if first in ("", "rownames", "Unnamed: 0") and frame[first].is_unique:
        frame = frame.drop(columns=first)
    return frame


def write_frame(frame: Any, path: str | Path) -> None:
    """Write a frame of pandas as CSV or Parquet, by the ending of the path."""
    parquet = Path(path).suffix.lower() in (".parquet", ".pq")
    write = frame.to_parquet if parquet else frame.to_csv
    with atomic_write(path) as stream:
        write(stream, index=False)


def _read_csv(path: Path) -> Any:
    import pandas as pd

    separator = "\t" if ".tsv" in "".join(path.suffixes) else ","
    names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0]
    if len(names) == 1:  # another separator, or one column
        separator = max(SEPARATORS, key=str(names[0]).count)
        names = pd.Series(str(names[0]).split(separator))
        if len(names) == 1 and path.suffix.lower() == ".txt":
            return pd.read_csv(path, sep=None, engine="python")
    told = names.dropna().str.strip()
    if told.duplicated().any():
        name = told[told.duplicated()].iloc[0]
        raise ValueError(f"{path} must have a name for each column, but has {name!r} twice")
    frames = (
        pd.read_csv(path, sep=separator, decimal=mark) for mark in (".,"[: 1 + (separator == ";")])
    )
    return max(frames, key=lambda frame: len(frame.select_dtypes("number").columns))


def _parsed(column: Any) -> Any:
    """Return a column of text as dates, if all of them are such; of several zones as UTC."""
    import pandas as pd

    known = column.dropna()
    if not len(known) or not known.astype(str).str.match(r"\d{4}-\d{2}-\d{2}([ T]\d|$)").all():
        return column
    for settings in ({}, {"utc": True}):
        try:
            return pd.to_datetime(column, format="ISO8601", **settings)
        except (ValueError, TypeError):
            continue
    return column
