"""Readers, public schemas and the sets that come along; stands alone."""

from lastiterate.data.binary_files import read_archive, read_idx_array
from lastiterate.data.columns import Array, Category, Ignore, Numeric
from lastiterate.data.encoding import encode, encode_features
from lastiterate.data.readers import (
    BUNDLED,
    check_readable,
    load_bundled,
    read_table,
    schema_template,
    split,
)
from lastiterate.data.record_source import Generated, stream
from lastiterate.data.schema import Schema
from lastiterate.data.table import Table

__all__ = [
    "BUNDLED",
    "Array",
    "Category",
    "Generated",
    "Ignore",
    "Numeric",
    "Schema",
    "Table",
    "check_readable",
    "encode",
    "encode_features",
    "load_bundled",
    "read_archive",
    "read_idx_array",
    "read_table",
    "schema_template",
    "split",
    "stream",
]
