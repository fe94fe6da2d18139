"""Audits: how sharp and how fast they are, and one adversarial record in a network."""
