"""Mathematics that several theorems share; no theorem lives here."""
