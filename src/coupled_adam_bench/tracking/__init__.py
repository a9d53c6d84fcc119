"""Copies the files of a study into MLflow; nothing else imports mlflow."""
