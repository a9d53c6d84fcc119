"""From text, or a generated language, to memory-mapped token bins."""
