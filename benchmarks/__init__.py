"""Programs that measure; results are files under results/."""
