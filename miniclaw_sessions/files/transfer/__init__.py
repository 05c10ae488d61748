"""From elsewhere and to elsewhere: sessions imported and exported; workspaces backed up, restored, rekeyed."""
