"""One codec per stored or foreign form, with the canonical values in the middle."""
