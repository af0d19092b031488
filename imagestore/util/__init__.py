"""What every room may use and nothing here knows of images: cancellation, files, durations, texts, other programs."""
