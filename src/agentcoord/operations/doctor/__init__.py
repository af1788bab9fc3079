"""The place that tells the truth about the backend: probes, the report on them, the stack contract."""
