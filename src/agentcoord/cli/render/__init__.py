"""From results to text and JSON: one module a noun."""
