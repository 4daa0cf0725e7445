"""A run's folder becomes one page that anyone can open: `write_report`."""

from archlearn_cli.reporting.page import write_report

__all__ = ["write_report"]
