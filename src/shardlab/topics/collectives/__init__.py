"""Who sends what to whom, and what a message costs."""
