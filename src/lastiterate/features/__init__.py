"""Public maps of one record by itself: what becomes of a record's fields before a linear model
reads them.

A map knows the public facts of a record's fields and one record at a time. It learns nothing from
data, so that it costs no privacy; it is part of the schema that is released with a model.
"""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
