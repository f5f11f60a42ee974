"""What every room stands on: errors, files, the codec, the vocabulary and the clip."""
