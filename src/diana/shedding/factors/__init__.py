"""What is measured, one file each; a stranger's stand beside them, by entry points in `diana.factors`."""
