"""What a study is: its declared metrics, tables and stages, its settings, cells, plan and
tunings."""
