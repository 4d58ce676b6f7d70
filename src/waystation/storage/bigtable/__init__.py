"""Push's rows in Google Cloud Bigtable, in Autopush's layout."""
