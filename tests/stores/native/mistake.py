"""Reads memory that was given back, for the sanitizers to find."""

from __future__ import annotations

import ctypes

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
place = library.malloc(64)
library.free(place)
library.strlen.argtypes = [ctypes.c_void_p]
library.strlen(place)
