"""From a run to verdicts, a certificate, and the noise that a budget allows."""
