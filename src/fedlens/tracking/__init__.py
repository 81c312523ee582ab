"""What a run leaves behind and shows: its folder, checkpoints, metrics, progress and trackers."""
