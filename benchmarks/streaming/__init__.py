"""What it costs to train on data larger than memory."""
