"""Helpers for every room that know nothing of images: cancellation, files, durations, texts, external programs."""
