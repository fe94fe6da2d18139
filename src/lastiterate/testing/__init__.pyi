"""The public names of this package (see ``lazy``)."""

from lastiterate.testing.laws import check_adjacency as check_adjacency
from lastiterate.testing.laws import check_against_table as check_against_table
from lastiterate.testing.laws import check_batching as check_batching
from lastiterate.testing.laws import check_bound as check_bound
from lastiterate.testing.laws import check_example as check_example
from lastiterate.testing.laws import check_feature_map as check_feature_map
from lastiterate.testing.laws import check_monotone as check_monotone
from lastiterate.testing.laws import check_theorem as check_theorem
from lastiterate.testing.mutants import find_surviving_mutants as find_surviving_mutants

__all__: list[str]
