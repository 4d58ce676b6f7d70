"""DynamoDB: the schema of Autopush's Python generation, with or without monthly rotation."""
