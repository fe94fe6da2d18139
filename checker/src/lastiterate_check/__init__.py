"""An independent checker of certificates of lastiterate."""
