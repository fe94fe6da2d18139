"""What is fitted, saved, loaded, predicted with and verified."""
