"""Looks into data before anybody loads it: format, columns, files, blocks, rows, a few samples."""

from headrace.inspecting.inspection import Inspection
from headrace.inspecting.looking import inspect

__all__ = ["Inspection", "inspect"]
