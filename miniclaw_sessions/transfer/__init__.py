"""Sessions from elsewhere and to elsewhere: imports and exports, as streams of any length."""
