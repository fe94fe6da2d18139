"""Times: accounting, private steps on linear models and networks, beside other libraries."""
