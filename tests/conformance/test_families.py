"""Where recipes and truths of ops stand."""

from __future__ import annotations

import pkgutil
from collections import Counter
from importlib import import_module

import pytest

from propolis.ops import catalogue
from propolis_conformance import families


def ops_of(family):
    """What the file of a family says of its ops."""
    return import_module(f"{families.__name__}.{family}").OPS


@pytest.mark.parametrize("spec", catalogue().values(), ids=lambda spec: spec.name)
def test_each_op_stands_in_the_file_of_its_family(spec):
    """Its recipe and its truth are there, and are what the suite goes by."""
    info = ops_of(spec.family)[spec.name]
    assert families.info_of(spec.name) is info
    assert info.recipes
    assert (info.truth is None) == (info.truth_of_call is not None)


def test_no_two_families_name_the_same_op():
    """One would take the other's place, by the order of their names."""
    files = [file.name for file in pkgutil.iter_modules(families.__path__)]
    named = Counter(name for family in files for name in ops_of(family))
    assert {name for name, count in named.items() if count > 1} == set()
    assert set(named) == set(families.OPS)


def test_an_op_that_no_file_names():
    """It has neither recipe nor truth, which a report says, and is no error."""
    info = families.info_of("of_a_newer_core")
    assert info.recipes == ()
    assert info.formula({}, {}) is None
