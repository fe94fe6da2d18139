"""Readers, public schemas and the sets that come along; stands alone."""

from lastiterate.data.readers import BUNDLED, load_bundled, split
from lastiterate.data.columns import Array, Category, Ignore, Numeric
from lastiterate.data.encoding import encode, encode_features
from lastiterate.data.numpy_files import read_idx_array
from lastiterate.data.numpy_files import read_archive
from lastiterate.data.readers import check_readable, read_table, schema_template
from lastiterate.data.schema import Schema
from lastiterate.data.record_source import Generated, stream
from lastiterate.data.table import Table

__all__ = ["BUNDLED", "Array", "Category", "Generated", "Ignore", "Numeric", "Schema", "Table", "check_readable",
           "encode", "encode_features", "load_bundled", "read_archive", "read_idx_array", "read_table",
           "schema_template", "split", "stream"]
