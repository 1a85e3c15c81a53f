"""What a process needs of its host: paths, private files, signals and logs."""
