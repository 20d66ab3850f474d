# SPDX-License-Identifier: BSD-3-Clause
"""MACE written for inference, and loaders for trained models."""

from __future__ import annotations

from ._load import load

__all__ = ["load"]
