"""What Diana does, for those who watch."""
