"""The commands of ``planish``; the larger ones (bench, check, demo) have folders of their own."""
