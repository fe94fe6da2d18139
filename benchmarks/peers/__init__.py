"""Scripts that run in another library's interpreter, and what they share; see ``child_process``."""
