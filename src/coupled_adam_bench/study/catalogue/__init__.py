"""What an experiment is made of, each thing declared once: metrics, tables and stages; light, for
all to import."""
