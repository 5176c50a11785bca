"""Number formats, master weights, loss scaling."""
