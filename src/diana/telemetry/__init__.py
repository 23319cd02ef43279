"""The observers that Diana brings. Entry points: `diana.observers`.

prometheus  metrics for Prometheus
denial_log  a log line for each denied request
"""
