"""The cluster's front: many storage servers under one address."""
