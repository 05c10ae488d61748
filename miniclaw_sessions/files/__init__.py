"""Files of other programs and of ours: their formats, importing and exporting, and finding them."""
